/* semantics CASE: prints the results of I/O calls that a program can observe. A hook must not
 * change any of them. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void show(const char *what, long value) { printf("%s %ld errno %d\n", what, value, errno); }

/* A call that succeeds leaves errno unchanged; one that fails sets it. */
static void error_numbers(void) {
    char text[16];
    struct stat s;
    int ends[2];
    errno = 77; show("open", open("a", O_RDWR | O_CREAT, 0600));
    errno = 77; show("write", write(3, "abc", 3));
    errno = 77; show("lseek", lseek(3, 1, SEEK_SET));
    errno = 77; show("read", read(3, text, 16));
    errno = 77; show("read at the end", read(3, text, 16));
    errno = 77; show("stat", stat("a", &s));
    errno = 77; show("access", access("a", R_OK));
    errno = 77; show("ftruncate", ftruncate(3, 10));
    errno = 77; show("posix_fallocate", posix_fallocate(3, 0, 100));
    errno = 77; show("posix_fallocate -1", posix_fallocate(-1, 0, 100));
    errno = 77; show("posix_fadvise -1", posix_fadvise(-1, 0, 0, 0));
    errno = 77; show("dup", dup(3));
    errno = 77; show("fopen", fileno(fopen("b", "w")));
    errno = 77; show("close", close(4));
    errno = 77; show("read directory", read(open(".", O_RDONLY), text, 16));
    errno = 77; show("write to a read-only descriptor", write(open("a", O_RDONLY), "x", 1));
    errno = 77; show("open nothing", open("none/x", O_RDONLY));
    errno = 77; show("open null", open(NULL, O_RDONLY));
    errno = 77; show("stat bad pointer", syscall(SYS_stat, (void *)1, &s));
    errno = 77; show("bad pointer", open((char *)1, O_RDONLY));
    errno = 77; show("read bad pointer", read(3, (void *)1, 5));
    errno = 77; show("readv too many", readv(3, (struct iovec *)text, 5000));
    errno = 77; show("close twice", close(4));
    errno = 77; show("lseek on a pipe", pipe(ends) ? -2 : lseek(ends[0], 0, SEEK_CUR));
    errno = 77; show("rename nothing", rename("none", "x"));
    errno = 77; show("mkdir twice", mkdir(".", 0700));
    errno = 77; show("mmap nothing", mmap(NULL, 0, PROT_READ, MAP_SHARED, 3, 0) == MAP_FAILED);
    errno = 77; show("fclose", fclose(fdopen(dup(3), "r")));
    errno = 77; show("fopen bad mode", fopen("a", "?") == NULL);
    errno = 77; show("fdopen bad descriptor", fdopen(700, "r") == NULL);
    signal(SIGPIPE, SIG_IGN);
    close(ends[0]);
    errno = 77; show("write to a closed pipe", write(ends[1], "x", 1));
    struct rlimit none = {20, 20};
    setrlimit(RLIMIT_NOFILE, &none);
    while (dup(3) >= 0) {}
    errno = 77; show("no descriptor left: open", open("a", O_RDONLY));
    errno = 77; show("no descriptor left: fopen", fopen("a", "r") == NULL);
    for (int fd = 3; fd < 20; fd++) close(fd);
    struct rlimit small = {100, 100};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    int fd = open("limited", O_RDWR | O_CREAT, 0600);
    static char block[300];
    errno = 77; show("short write", write(fd, block, 300));
    errno = 77; show("file too large", write(fd, block, 300));
}

static void work(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 100; i++)
        if (write(fd, name, 1) != 1)
            abort();
    close(fd);
}

static void ended(const char *what, pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid)
        abort();
    printf("%s: exited %d code %d signal %d\n", what, WIFEXITED(status), WIFEXITED(status) ? WEXITSTATUS(status) : 0,
           WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    fflush(stdout);
}

static void children(const char *self) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        work("forked");
        exit(3);
    }
    ended("fork", pid);
    pid = fork();
    if (pid == 0) {
        work("left");
        _exit(4);
    }
    ended("_exit", pid);
    pid = fork();
    if (pid == 0) {
        work("killed");
        kill(getpid(), SIGKILL);
    }
    ended("SIGKILL", pid);
    pid = vfork();
    if (pid == 0) {
        execl(self, self, "child", "vforked", NULL);
        _exit(9);
    }
    ended("vfork and exec", pid);
    pid = vfork();
    if (pid == 0) {
        close(open("in-vfork", O_RDWR | O_CREAT, 0600));
        _exit(5);
    }
    ended("vfork and _exit", pid);
    work("parent");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 7, "spawn-opened", O_WRONLY | O_CREAT, 0600);
    char *words[] = {(char *)self, "child", "spawned", NULL};
    if (posix_spawn(&pid, self, &actions, NULL, words, environ))
        abort();
    ended("posix_spawn", pid);
    printf("system %d\n", WEXITSTATUS(system("exit 6")));
    FILE *out = popen("echo from popen", "r");
    char line[64] = "";
    if (fgets(line, sizeof line, out))
        printf("popen %s", line);
    printf("pclose %d\n", pclose(out));
    /* fork from a fork, and exec without a fork */
    pid = fork();
    if (pid == 0) {
        pid = fork();
        if (pid == 0) {
            work("grandchild");
            _exit(7);
        }
        ended("fork in a fork", pid);
        execl(self, self, "child", "executed", NULL);
    }
    ended("exec", pid);
}

static void *in_thread(void *name) {
    work(name);
    return NULL;
}

static void threads(void) {
    pthread_t thread[200];
    char name[200][16];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++) {
            sprintf(name[i], "t%d", i);
            if (pthread_create(&thread[i], NULL, in_thread, name[i]))
                abort();
        }
        for (int i = 0; i < 200; i++)
            pthread_join(thread[i], NULL);
    }
    struct stat s;
    long total = 0;
    for (int i = 0; i < 200; i++)
        total += stat(name[i], &s) ? 0 : s.st_size;
    show("bytes", total);
}

static void cleanup(void *flag) { *(int *)flag = 1; }

static int cleaned;

static void *reads_for_ever(void *fd) {
    char byte;
    pthread_cleanup_push(cleanup, &cleaned);
    for (;;)
        if (read(*(int *)fd, &byte, 1) != 1)
            break;
    pthread_cleanup_pop(0);
    return NULL;
}

static void *never_reads(void *fd) {
    char byte;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    ssize_t got = read(*(int *)fd, &byte, 1);
    return (void *)got;
}

static void cancellation(void) {
    int ends[2];
    pthread_t thread;
    void *result;
    if (pipe(ends))
        abort();
    pthread_create(&thread, NULL, reads_for_ever, &ends[0]);
    if (write(ends[1], "ab", 2) != 2)
        abort();
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("cancelled %d cleaned %d\n", result == PTHREAD_CANCELED, cleaned);
    work("after-cancel");
    pthread_create(&thread, NULL, never_reads, &ends[0]);
    pthread_cancel(thread);
    usleep(50000);
    if (write(ends[1], "c", 1) != 1)
        abort();
    pthread_join(thread, &result);
    printf("not cancelled: %ld\n", (long)result);
}

static volatile int handled;

static void handler(int number) {
    (void)number;
    int saved = errno, fd = open("in-handler", O_RDWR | O_CREAT | O_APPEND, 0600);
    if (write(fd, "x", 1) == 1)
        handled++;
    close(fd);
    errno = saved;
}

static void signals(void) {
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGALRM, &action, NULL);
    int ends[2];
    char byte;
    if (pipe(ends))
        abort();
    alarm(1);
    errno = 77;
    show("interrupted read", read(ends[0], &byte, 1));
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 1000; i++) {
        raise(SIGUSR1);
        work("between");
    }
    printf("handled %d\n", handled);
    struct stat s;
    stat("in-handler", &s);
    show("bytes", s.st_size);
}

static void at_exit(void) { work("at-exit"); }
__attribute__((constructor)) static void before_main(void) {
    if (getenv("EARLY"))
        work("before-main");
}
__attribute__((destructor)) static void after_main(void) {
    if (getenv("EARLY"))
        work("after-main");
}

static void inherited(void) {
    /* Descriptors 8 and 9 are inherited from the parent. */
    char text[8] = "";
    show("position", lseek(8, 0, SEEK_CUR));
    show("read", read(8, text, 5));
    show("write", write(9, "more", 4));
    printf("%s\n", text);
}

/* The first request is made while all descriptors are in use. */
static void full_table(void) {
    struct rlimit limit;
    struct stat s;
    int first = eventfd(0, 0), last = first, next;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = first + 10;
    setrlimit(RLIMIT_NOFILE, &limit);
    while ((next = eventfd(0, 0)) >= 0)
        last = next;
    show("stat", stat("none", &s));
    while (last >= first)
        close(last--);
    for (int i = 0; i < 10; i++)
        work("full-table");
}

int main(int argc, char **argv) {
    const char *which = argc > 1 ? argv[1] : "";
    if (!strcmp(which, "errno")) error_numbers();
    else if (!strcmp(which, "children")) children(argv[0]);
    else if (!strcmp(which, "child")) { work(argv[2]); return 8; }
    else if (!strcmp(which, "threads")) threads();
    else if (!strcmp(which, "cancellation")) cancellation();
    else if (!strcmp(which, "signals")) signals();
    else if (!strcmp(which, "inherited")) inherited();
    else if (!strcmp(which, "full-table")) full_table();
    else if (!strcmp(which, "atexit")) { atexit(at_exit); work("main"); return 11; }
    else if (!strcmp(which, "abort")) { work("main"); abort(); }
    else if (!strcmp(which, "segfault")) { work("main"); raise(SIGSEGV); }
    else if (!strcmp(which, "kill")) { work("main"); kill(getpid(), SIGKILL); }
    else if (!strcmp(which, "quick_exit")) { work("main"); quick_exit(12); }
    else if (!strcmp(which, "thread_exit")) {
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, "other");
        pthread_exit(NULL);
    } else return 2;
    return 0;
}
