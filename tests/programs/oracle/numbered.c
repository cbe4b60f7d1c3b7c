// Numbered writes, and notes of their count: `numbered NUMBER PLACES LIVES WRITES PAUSE_US NOTES
// FOLDER`.
//
// PLACES threads run at a time, until LIVES threads have run. Each makes WRITES writes to its own
// file in FOLDER, and pauses PAUSE_US after each hundred. The file's name identifies the thread,
// the offset the write; the length follows from both. Request 0 of a thread is the open.
//
// The notes are a mapped file, so that they survive SIGKILL at any instruction. The program makes
// no other call that a hook records: for the notes it makes system calls directly, not through
// libc.
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LIVES = 64, SAMPLES = 256, SAMPLE_EVERY = 16, LENGTHS = 61 };

// A write whose times were noted, by the clock of the system.
struct sample { uint64_t number; int64_t before, after; };
// Notes of a thread. `begun` is written before a request and `done` after it.
struct life { volatile uint64_t begun, done, tid, filling; struct sample samples[SAMPLES]; };

static struct life *lives;
static const char *folder;
static uint64_t program, next_life, most_lives, writes;
static long pause_us;

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void live(uint64_t number) {
    struct life *life = &lives[number];
    uint64_t tag = program * MOST_LIVES + number;
    static const char buffer[LENGTHS];
    char path[4096];
    snprintf(path, sizeof path, "%s/%lu", folder, tag);
    life->tid = call(SYS_gettid, 0, 0, 0, 0, 0, 0);
    life->begun = 1;
    int file = open(path, O_WRONLY | O_CREAT, 0600);
    life->done = 1;
    if (file < 0) _exit(4);
    for (uint64_t n = 1; n <= writes; n++) {
        size_t length = 1 + (tag + n) % LENGTHS;
        struct sample *sample = n % SAMPLE_EVERY ? 0 : &life->samples[n / SAMPLE_EVERY % SAMPLES];
        int64_t before = sample ? now() : 0;
        life->begun = n + 1;
        ssize_t written = pwrite(file, buffer, length, (off_t)n);
        life->done = n + 1;
        if (sample) {
            int64_t after = now();
            // The place of a sample shows whether a kill left it half written.
            life->filling = n / SAMPLE_EVERY % SAMPLES + 1;
            *sample = (struct sample){n, before, after};
            life->filling = 0;
        }
        if (written != (ssize_t)length) _exit(5);
        if (n % 100 == 0 && pause_us > 0) usleep(pause_us);
    }
    call(SYS_close, file, 0, 0, 0, 0, 0);
}

static void *place(void *unused) {
    for (;;) {
        // A new thread for each life, so that streams start and end.
        uint64_t number = __atomic_fetch_add(&next_life, 1, __ATOMIC_RELAXED);
        if (number >= most_lives) return unused;
        pthread_t thread;
        if (pthread_create(&thread, 0, (void *(*)(void *))live, (void *)number) != 0) _exit(6);
        pthread_join(thread, 0);
    }
}

int main(int count, char **words) {
    if (count != 8) return 2;
    program = strtoul(words[1], 0, 10);
    unsigned long places = strtoul(words[2], 0, 10);
    most_lives = strtoul(words[3], 0, 10);
    writes = strtoul(words[4], 0, 10);
    pause_us = strtol(words[5], 0, 10);
    folder = words[7];
    if (most_lives > MOST_LIVES || places > MOST_LIVES) return 2;
    long file = call(SYS_openat, AT_FDCWD, (long)words[6], O_RDWR, 0, 0, 0);
    long notes = call(SYS_mmap, 0, MOST_LIVES * sizeof(struct life), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || (notes < 0 && notes > -4096)) return 3;
    lives = (struct life *)notes;
    pthread_t threads[MOST_LIVES];
    for (unsigned long n = 0; n < places; n++)
        if (pthread_create(&threads[n], 0, place, 0) != 0) return 6;
    for (unsigned long n = 0; n < places; n++) pthread_join(threads[n], 0);
    return 0;
}
