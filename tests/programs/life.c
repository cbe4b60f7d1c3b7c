/* life CASE …: processes and threads that start and end in unusual ways, each making a known
 * number of requests. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "life: %s: %s\n", what, strerror(errno));
        abort();
    }
}

/* One open, `count` writes of a byte, one close. */
static void work(const char *name, int count) {
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    check(fd >= 0, name);
    for (int i = 0; i < count; i++)
        check(write(fd, "x", 1) == 1, "write");
    check(close(fd) == 0, "close");
}

#ifdef LIBRARY
__attribute__((constructor)) static void loaded(void) { work("lib-loaded", 10); }
__attribute__((destructor)) static void unloaded(void) { work("lib-unloaded", 10); }
void called(void) { work("lib-called", 10); }
#else

/* Waits until a file exists, by system calls that no hook intercepts. */
static void wait_for(const char *gate) {
    struct timespec nap = {0, 1000000};
    while (syscall(SYS_faccessat, AT_FDCWD, gate, F_OK))
        syscall(SYS_nanosleep, &nap, NULL);
}

static void reap(pid_t pid) {
    int status;
    check(waitpid(pid, &status, 0) == pid, "waitpid");
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child failed");
}

/* Makes five requests. */
static void few(const char *name) {
    char text[8];
    struct stat facts;
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    check(fd >= 0 && pwrite(fd, "12345678", 8, 0) == 8 && pread(fd, text, 8, 0) == 8, name);
    check(close(fd) == 0 && stat(name, &facts) == 0, name);
}

static void *one_thread(void *name) {
    work(name, 3);
    return NULL;
}

static void threads(int waves, int width) {
    pthread_t thread[width];
    char name[width][16];
    for (int wave = 0; wave < waves; wave++) {
        for (int i = 0; i < width; i++) {
            sprintf(name[i], "thread-%d", i);
            check(pthread_create(&thread[i], NULL, one_thread, name[i]) == 0, "pthread_create");
        }
        for (int i = 0; i < width; i++)
            pthread_join(thread[i], NULL);
    }
}

/* A tree of processes with `depth` levels of `width` children. Each process works before and
 * after its forks. */
static void tree(int depth, int width, const char *name) {
    work(name, 5);
    for (int i = 0; depth > 0 && i < width; i++) {
        pid_t pid = fork();
        check(pid >= 0, "fork");
        if (pid == 0) {
            char below[64];
            snprintf(below, sizeof below, "%s-%d", name, i);
            tree(depth - 1, width, below);
            exit(0);
        }
        if (i % 2)
            reap(pid);
    }
    work(name, 5);
    while (wait(NULL) > 0) {}
}

static void makers(char *self) {
    pid_t pid;
    char *words[] = {self, "short", "spawned", NULL};
    for (int i = 0; i < 100; i++) {
        if ((pid = vfork()) == 0) {
            execl(self, self, "short", "vforked", NULL);
            _exit(1);
        }
        check(pid > 0, "vfork");
        few("between");
        reap(pid);
        check(posix_spawn(&pid, self, NULL, NULL, words, environ) == 0, "posix_spawn");
        reap(pid);
        /* No handler of pthread_atfork runs. */
        pid = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid == 0) {
            work("cloned", 10);
            _exit(0);
        }
        check(pid > 0, "clone");
        reap(pid);
    }
}

static void daemonize(const char *file) {
    char *whole = realpath(".", NULL), path[4096];
    snprintf(path, sizeof path, "%s/%s", whole, file);
    work("before", 10);
    if (fork())
        _exit(0);
    setsid();
    if (fork())
        _exit(0);
    umask(0);
    check(chdir("/") == 0, "chdir");
    for (int fd = 0; fd < 1024; fd++)
        close(fd);
    check(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2, "/dev/null");
    work(path, 50);
    close_range(0, ~0U, 0);
    work(path, 50);
}

static int lock_file(void) {
    int fd = open("locked", O_RDWR | O_CREAT, 0600);
    check(fd >= 0, "locked");
    return fd;
}

static int arrived;

static void *hangs(void *fd) {
    __atomic_store_n((pid_t *)fd, gettid(), __ATOMIC_RELEASE);
    flock(((int *)fd)[1], LOCK_EX);
    __atomic_fetch_add(&arrived, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* True if a thread sleeps in the system call of this number. */
static int sleeps_in(pid_t tid, long number) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
    if (fd < 0)
        return 0;
    long got = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    return got > 0 && strtol(text, NULL, 10) == number && strncmp(text, "running", 7);
}

/* Threads wait for a lock that is never released, while the process ends in one of several ways. */
static void hang(char *self, const char *how, int width) {
    int mine = lock_file(), place[width][2];
    pthread_t thread[width];
    check(flock(mine, LOCK_EX) == 0, "flock");
    for (int i = 0; i < width; i++) {
        place[i][0] = 0;
        place[i][1] = lock_file();
        check(pthread_create(&thread[i], NULL, hangs, place[i]) == 0, "pthread_create");
        while (!sleeps_in(__atomic_load_n(&place[i][0], __ATOMIC_ACQUIRE), SYS_flock))
            sched_yield();
    }
    work("beside", 100);
    if (!strcmp(how, "exec"))
        execl(self, self, "short", "executed", NULL);
    else if (!strcmp(how, "exit"))
        exit(0);
    else if (!strcmp(how, "_exit"))
        _exit(0);
    else if (!strcmp(how, "kill"))
        kill(getpid(), SIGKILL);
    else if (!strcmp(how, "cancel")) {
        /* flock is not a cancellation point: the lock is granted, and the requests return. */
        for (int i = 0; i < width; i++)
            pthread_cancel(thread[i]);
    } else
        check(!strcmp(how, "return"), how);
    check(flock(mine, LOCK_UN) == 0, "unlock");
    for (int i = 0; i < width; i++) {
        /* Each thread has the lock until its description is closed. */
        while (__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) <= i)
            sched_yield();
        for (int j = 0; j < width; j++)
            flock(place[j][1], LOCK_UN);
    }
    for (int i = 0; i < width; i++)
        pthread_join(thread[i], NULL);
}

static void *reads(void *place) {
    char byte;
    __atomic_store_n((pid_t *)place, gettid(), __ATOMIC_RELEASE);
    read(((int *)place)[1], &byte, 1);
    return NULL;
}

/* Is killed while one thread hangs in a request that is not recorded, and the last request of
 * the other was filtered out. */
static void unrecorded(void) {
    int ends[2], place[2] = {0};
    pthread_t thread;
    check(pipe(ends) == 0, "pipe");
    place[1] = ends[0];
    work("beside", 100);
    check(pthread_create(&thread, NULL, reads, place) == 0, "pthread_create");
    while (!sleeps_in(__atomic_load_n(&place[0], __ATOMIC_ACQUIRE), SYS_read))
        sched_yield();
    check(open("/dev/null", O_RDWR) >= 0 && access("/proc/self/maps", R_OK) == 0, "left out");
    kill(getpid(), SIGKILL);
}

/* Starts children that all have the process id of the first. Exit code 3: not permitted here. */
static void reuse(int count) {
    pid_t wanted = 0;
    for (int made = 0, tries = 0; made < count; tries++) {
        if (wanted) {
            char text[16];
            int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
            int length = snprintf(text, sizeof text, "%d", wanted - 1);
            if (fd < 0 || write(fd, text, length) != length || tries > 2000 * count)
                exit(3);
            close(fd);
        }
        pid_t pid = fork();
        check(pid >= 0, "fork");
        if (pid == 0) {
            if (wanted && getpid() != wanted)
                _exit(0);
            work("reused", 10);
            _exit(0);
        }
        reap(pid);
        made += !wanted || pid == wanted;
        if (!wanted)
            wanted = pid;
    }
    printf("%d\n", wanted);
}

static int handler_file;
static volatile long handled;

static void handler(int number) {
    (void)number;
    int saved = errno;
    check(write(handler_file, "h", 1) == 1, "write in the handler");
    handled++;
    errno = saved;
}

/* Handlers that write, at the highest rate of the kernel's timer, at any instruction. */
static void signals(int count) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 50}, {0, 50}};
    handler_file = open("in-handler", O_RDWR | O_CREAT, 0600);
    sigaction(SIGALRM, &action, NULL);
    check(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
    work("main", count);
    while (handled < 100)
        work("more", 1);
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    printf("%ld\n", handled);
}

static __thread sigjmp_buf back;
static __thread volatile int armed;

static void jump(int number) {
    (void)number;
    if (armed) {
        armed = 0;
        siglongjmp(back, 1);
    }
}

static void *jumper(void *fd) {
    for (volatile int i = 0; i < 3; i++)
        if (!sigsetjmp(back, 1)) {
            armed = 1;
            write(*(int *)fd, "j", 1);
            armed = 0;
        }
    return NULL;
}

static void *calm(void *unused) {
    work("after", 1000);
    return unused;
}

/* Handlers that never return, mostly out of first requests. */
static void jumps(int waves) {
    struct sigaction action = {.sa_handler = jump, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 50}, {0, 50}};
    pthread_t thread[8];
    int fd = open("jumps", O_RDWR | O_CREAT | O_APPEND, 0600);
    sigaction(SIGALRM, &action, NULL);
    /* The main thread never jumps, so it leaves the signals to the others. */
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    check(setitimer(ITIMER_REAL, &often, NULL) == 0, "setitimer");
    for (int wave = 0; wave < waves; wave++) {
        for (int i = 0; i < 8; i++)
            check(pthread_create(&thread[i], NULL, jumper, &fd) == 0, "pthread_create");
        pthread_sigmask(SIG_BLOCK, &alarm, NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(thread[i], NULL);
        pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    }
    memset(&often, 0, sizeof often);
    setitimer(ITIMER_REAL, &often, NULL);
    check(pthread_create(&thread[0], NULL, calm, NULL) == 0, "pthread_create");
    pthread_join(thread[0], NULL);
    printf("%ld\n", (long)lseek(fd, 0, SEEK_END));
}

/* A thread that single-steps through one request and leaves it at instruction `leave` of the
 * recording library, by a jump out of the handler. Jumping out of libc in the middle of a read
 * could leave one of its locks held. */
struct left {
    int fd, later, by_stream;
    FILE *stream;
    long leave;
};

enum { LATER = 20 };
static __thread volatile long instructions;
static __thread volatile long leave_at;

/* Address range of the library that exports `write`. */
static struct { uintptr_t write, from, to; } hook;

static int find_hook(struct dl_phdr_info *object, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t from = object->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type == PT_LOAD && from <= hook.write && hook.write < to) {
            hook.from = from;
            hook.to = to;
            return 1;
        }
    }
    return 0;
}

static void step(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    uintptr_t at = (uintptr_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (hook.from <= at && at < hook.to && ++instructions == leave_at)
        siglongjmp(back, 1);
}

static void *leave_a_request(void *argument) {
    struct left *left = argument;
    check(write(left->later, "l", 1) == 1, "write");
    leave_at = left->leave;
    if (!sigsetjmp(back, 1)) {
        __asm__ volatile("pushfq\n orl $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
        if (left->by_stream)
            fgetc_unlocked(left->stream);
        else
            write(left->fd, "l", 1);
        __asm__ volatile("pushfq\n andl $~0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    }
    left->leave = instructions;
    for (int i = 0; i < LATER; i++)
        check(write(left->later, "l", 1) == 1, "write");
    return NULL;
}

static void leave(struct left *left) {
    pthread_t thread;
    check(pthread_create(&thread, NULL, leave_a_request, left) == 0, "pthread_create");
    check(pthread_join(thread, NULL) == 0, "pthread_join");
}

/* Leaves a request at `times` of its instructions, from the first to the last, each time in a new
 * thread. Prints the number of writes before and after. */
static void leaves(int times, int by_stream) {
    struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
    struct left left = {.by_stream = by_stream};
    left.fd = open("left", O_RDWR | O_CREAT | O_TRUNC, 0600);
    left.later = open("later", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600);
    check(ftruncate(left.fd, 1 << 16) == 0, "ftruncate");
    left.stream = fdopen(dup(left.fd), "r");
    check(left.stream != NULL, "fdopen");
    setvbuf(left.stream, NULL, _IONBF, 0);
    hook.write = (uintptr_t)dlsym(RTLD_DEFAULT, "write");
    check(dl_iterate_phdr(find_hook, NULL), "the library that has `write`");
    sigaction(SIGTRAP, &action, NULL);
    leave(&left);
    long all = left.leave;
    for (int i = 0; i < times; i++) {
        left.leave = 1 + all * i / times;
        leave(&left);
    }
    printf("%ld\n", (long)lseek(left.later, 0, SEEK_END));
}

static __thread volatile long visit_at;
static int visitor;

static void visit(int number, siginfo_t *info, void *context) {
    (void)number, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t at = (uintptr_t)registers[REG_RIP];
    if (hook.from <= at && at < hook.to && ++instructions == visit_at) {
        check(write(visitor, "v", 1) == 1, "write in the handler");
        registers[REG_EFL] &= ~0x100;
    }
}

/* A handler writes at `times` instructions of the recording library during a write, from the first
 * to the last. Prints the number of writes of both. */
static void visits(int times) {
    struct sigaction action = {.sa_sigaction = visit, .sa_flags = SA_SIGINFO};
    int visited = open("visited", O_RDWR | O_CREAT | O_TRUNC, 0600);
    visitor = open("visitor", O_RDWR | O_CREAT | O_TRUNC, 0600);
    hook.write = (uintptr_t)dlsym(RTLD_DEFAULT, "write");
    check(dl_iterate_phdr(find_hook, NULL), "the library that has `write`");
    sigaction(SIGTRAP, &action, NULL);
    /* The first write sets up the lane. */
    write(visited, "m", 1);
    long all = 0;
    for (int i = 0; i <= times; i++) {
        visit_at = i ? 1 + all * (i - 1) / times : -1;
        instructions = 0;
        __asm__ volatile("pushfq\n orl $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
        write(visited, "m", 1);
        __asm__ volatile("pushfq\n andl $~0x100, (%%rsp)\n popfq" ::: "memory", "cc");
        if (i == 0)
            all = instructions;
    }
    printf("%ld %ld\n", (long)lseek(visited, 0, SEEK_END), (long)lseek(visitor, 0, SEEK_END));
}

static void load(const char *library) {
    for (int i = 0; i < 10; i++) {
        void *handle = dlopen(library, RTLD_NOW);
        check(handle != NULL, library);
        void (*called)(void) = (void (*)(void))dlsym(handle, "called");
        called();
        dlclose(handle);
    }
}

/* Descriptors and mappings that are visible to the program are only its own. */
static void descriptors(void) {
    work("some", 10);
    for (int fd = 0; fd < 1024; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("%d\n", fd);
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(which, "short")) few(argv[2]);
    else if (!strcmp(which, "threads")) threads(number, atoi(argv[3]));
    else if (!strcmp(which, "tree")) tree(number, atoi(argv[3]), "tree");
    else if (!strcmp(which, "makers")) makers(argv[0]);
    else if (!strcmp(which, "daemonize")) daemonize(argv[2]);
    else if (!strcmp(which, "hang")) hang(argv[0], argv[2], atoi(argv[3]));
    else if (!strcmp(which, "unrecorded")) unrecorded();
    else if (!strcmp(which, "reuse")) reuse(number);
    else if (!strcmp(which, "signals")) signals(number);
    else if (!strcmp(which, "jumps")) jumps(number);
    else if (!strcmp(which, "leaves")) leaves(number, atoi(argv[3]));
    else if (!strcmp(which, "visits")) visits(number);
    else if (!strcmp(which, "load")) load(argv[2]);
    else if (!strcmp(which, "descriptors")) descriptors();
    else if (!strcmp(which, "memory")) {
        /* Allocates and uses this number of megabytes. */
        memset(malloc((size_t)number << 20), 1, (size_t)number << 20);
        threads(4, 16);
    }
    else if (!strcmp(which, "steps")) {
        /* steps NAME: works whenever NAME-0, NAME-1, … appear, then waits for the end. */
        for (int i = 0;; i++) {
            char gate[256], done[256];
            snprintf(gate, sizeof gate, "%s-%d", argv[2], i);
            snprintf(done, sizeof done, "%s-done-%d", argv[2], i);
            wait_for(gate);
            work(argv[2], 100);
            syscall(SYS_close, syscall(SYS_openat, AT_FDCWD, done, O_RDWR | O_CREAT, 0600));
        }
    } else return 2;
    return 0;
}
#endif
