// Programs with known I/O: `known PATTERN FILE`. Every figure in tests/tests/characterize follows
// from this source.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(what)                                                                                                   \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            perror(#what);                                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static char *buffer; // aligned to a page
static const char *path;

static int opened(int flags) {
    int fd = open(path, flags, 0644);
    EXPECT(fd >= 0);
    return fd;
}

// 10 blocks are written and read back, and once more at the end of the file.
static void sequential(void) {
    int fd = opened(O_RDWR | O_CREAT | O_TRUNC);
    for (int i = 0; i < 10; i++) EXPECT(write(fd, buffer, 4096) == 4096);
    EXPECT(fsync(fd) == 0);
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    for (int i = 0; i < 10; i++) EXPECT(read(fd, buffer, 4096) == 4096);
    EXPECT(read(fd, buffer, 4096) == 0);
    EXPECT(close(fd) == 0);
}

// 100 bytes in each 1000, then every other of them again.
static void strided(void) {
    int fd = opened(O_WRONLY | O_CREAT | O_TRUNC);
    for (int i = 0; i < 10; i++) EXPECT(pwrite(fd, buffer, 100, 1000 * i) == 100);
    for (int i = 0; i < 10; i += 2) EXPECT(pwrite(fd, buffer, 100, 1000 * i) == 100);
    EXPECT(close(fd) == 0);
}

// 16 blocks in a scattered order.
static void scattered(void) {
    int fd = opened(O_RDWR | O_CREAT | O_TRUNC);
    EXPECT(ftruncate(fd, 16 * 512) == 0);
    for (int i = 0; i < 16; i++) EXPECT(pread(fd, buffer, 512, (5 * i + 3) % 16 * 512) == 512);
    EXPECT(close(fd) == 0);
}

// Small writes from unaligned addresses at unaligned offsets.
static void unaligned(void) {
    int fd = opened(O_WRONLY | O_CREAT | O_TRUNC);
    for (int i = 0; i < 50; i++) EXPECT(pwrite(fd, buffer + 1, 3, 4096 + 7 * i) == 3);
    for (int i = 0; i < 5; i++) EXPECT(pwrite(fd, buffer + 8, 3, 4096 * i) == 3);
    struct iovec parts[2] = {{buffer + 4, 10}, {buffer + 16, 10}};
    EXPECT(pwritev(fd, parts, 2, 1) == 20);
    EXPECT(close(fd) == 0);
}

// 2500 bytes, of which 1000 overwrite existing ones. After truncation no write overwrites.
static void overwriting(void) {
    int fd = opened(O_WRONLY | O_CREAT | O_TRUNC);
    EXPECT(pwrite(fd, buffer, 1000, 0) == 1000);
    EXPECT(pwrite(fd, buffer, 500, 0) == 500);
    EXPECT(pwrite(fd, buffer, 1000, 500) == 1000);
    EXPECT(close(fd) == 0);
    fd = opened(O_WRONLY | O_TRUNC);
    EXPECT(pwrite(fd, buffer, 1500, 0) == 1500);
    EXPECT(close(fd) == 0);
}

// Alternating reads and writes of many sizes.
static void mixed(void) {
    static const int sizes[] = {1, 100, 101, 1024, 1025, 10240, 102400, 102401, 1048576, 1048577};
    int fd = opened(O_RDWR | O_CREAT | O_TRUNC);
    off_t at = 0;
    for (int i = 0; i < 10; at += sizes[i], i++) {
        EXPECT(pwrite(fd, buffer, sizes[i], at) == sizes[i]);
        EXPECT(pread(fd, buffer, sizes[i], at) == sizes[i]);
    }
    EXPECT(pread(fd, buffer, 100, at) == 0);
    EXPECT(pread(-1, buffer, 100, 0) == -1);
    EXPECT(pread(fd, (void *)8, 1, 0) == -1); // counted as failed
    struct stat found;
    EXPECT(fstat(fd, &found) == 0);
    EXPECT(close(fd) == 0);
}

static void *part(void *number) {
    int fd = opened(O_WRONLY);
    for (int i = 0; i < 25; i++) EXPECT(pwrite(fd, buffer, 1000, ((long)number * 25 + i) * 1000) == 1000);
    EXPECT(close(fd) == 0);
    return NULL;
}

// 4 threads each write a quarter of a file.
static void threads(void) {
    EXPECT(close(opened(O_WRONLY | O_CREAT | O_TRUNC)) == 0);
    pthread_t all[4];
    for (long i = 0; i < 4; i++) EXPECT(pthread_create(&all[i], NULL, part, (void *)i) == 0);
    for (int i = 0; i < 4; i++) EXPECT(pthread_join(all[i], NULL) == 0);
}

// Many requests of all kinds on three files by several processes and threads, for the comparison
// with SQL.
static void *anything(void *seed) {
    uint64_t state = (uint64_t)(uintptr_t)seed * 0x9e3779b97f4a7c15u + 1;
    for (int round = 0; round < 4; round++) {
        char name[4096];
        state = state * 6364136223846793005u + 1442695040888963407u;
        snprintf(name, sizeof name, "%s.%d", path, (int)(state >> 40) % 3);
        int fd = open(name, O_RDWR | O_CREAT, 0644);
        EXPECT(fd >= 0);
        for (int i = 0; i < 300; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            size_t bytes = (size_t)1 << (state >> 60) << (state >> 59 & 1);
            off_t at = (off_t)(state >> 33) % 64 * 1024;
            char *from = buffer + (state >> 20 & 7);
            switch (state >> 50 & 7) {
            case 0: EXPECT(write(fd, from, bytes) == (ssize_t)bytes); break;
            case 1: EXPECT(read(fd, from, bytes) >= 0); break;
            case 2: EXPECT(lseek(fd, at, SEEK_SET) == at); break;
            case 3: case 4: EXPECT(pwrite(fd, from, bytes, at) == (ssize_t)bytes); break;
            case 5: EXPECT(fdatasync(fd) == 0); break;
            default: EXPECT(pread(fd, from, bytes, at) >= 0);
            }
        }
        EXPECT(close(fd) == 0);
    }
    return NULL;
}

static void mixture(void) {
    for (long child = 0; child < 2; child++) {
        if (fork() == 0) {
            pthread_t all[2];
            for (long i = 0; i < 2; i++) EXPECT(pthread_create(&all[i], NULL, anything, (void *)(2 * child + i)) == 0);
            for (int i = 0; i < 2; i++) EXPECT(pthread_join(all[i], NULL) == 0);
            exit(0);
        }
    }
    for (int status; wait(&status) > 0;) EXPECT(status == 0);
}

int main(int count, char **words) {
    EXPECT(count == 3 && posix_memalign((void **)&buffer, 4096, 2 << 20) == 0);
    memset(buffer, 'x', 2 << 20);
    path = words[2];
    static const struct { const char *name; void (*run)(void); } all[] = {
        {"sequential", sequential}, {"strided", strided}, {"scattered", scattered}, {"unaligned", unaligned},
        {"overwriting", overwriting}, {"mixed", mixed}, {"threads", threads}, {"mixture", mixture}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(words[1], all[i].name) == 0) return all[i].run(), 0;
    return 2;
}
