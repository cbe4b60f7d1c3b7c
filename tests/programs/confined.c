/* Confines itself with seccomp in one of several ways, does I/O before and after, and prints
 * "ok" if all of it worked.
 *   confined HOW BEFORE AFTER [PROGRAM ARGUMENTS...]    in a folder with a file "data"
 *
 * A denied call kills the process, unless HOW contains "errno". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int after;

static void say(const char *text)
{
    syscall(SYS_write, 1, text, strlen(text));
}

static int cycles(int times)
{
    char room[8];
    for (int i = 0; i < times; i++) {
        int fd = open("data", O_RDONLY);
        if (fd < 0 || read(fd, room, 4) != 4 || close(fd) != 0)
            return 0;
    }
    return 1;
}

static void finish(int good)
{
    say(good ? "ok\n" : "failed\n");
    _exit(!good);
}

/* Calls for the program's own I/O, then those for threads, children and new programs. */
static const int plain[] = { SYS_read, SYS_write, SYS_openat, SYS_close, SYS_exit_group, SYS_newfstatat };
static const int threads[] = { SYS_clone, SYS_clone3, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_set_robust_list, SYS_rseq,
                               SYS_exit, SYS_futex, SYS_rt_sigprocmask, SYS_wait4, SYS_brk, SYS_madvise };
static const int programs[] = { SYS_execve, SYS_access, SYS_fstat, SYS_pread64, SYS_arch_prctl, SYS_set_tid_address,
                                SYS_prlimit64, SYS_getrandom, SYS_rt_sigaction, SYS_rt_sigreturn };

static struct sock_filter filter[256];
static struct sock_fprog program = { 0, filter };

static void add(int code, int k, int jt, int jf)
{
    filter[program.len++] = (struct sock_filter){ code, jt, jf, k };
}

static void allow(const int *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        add(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], 0, 1);
        add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    }
}
#define ALLOW(numbers) allow(numbers, sizeof numbers / sizeof *numbers)

static void install(const char *how)
{
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int failed;
    if (strstr(how, "all"))
        failed = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0;
    else if (strstr(how, "syscall"))
        failed = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) != 0;
    else if (strstr(how, "indirect"))
        failed = syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
    else
        failed = prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
    if (failed)
        finish(0);
}

static volatile int confined, ready;

static void *reader(void *unused)
{
    (void)unused;
    if (!confined && !cycles(5))
        return NULL;
    ready = 1;
    while (!confined)
        ;
    return cycles(after) ? &filter : NULL;
}

int main(int count, char **words)
{
    const char *how = words[1];
    int before = atoi(words[2]);
    after = count > 3 ? atoi(words[3]) : 0;
    if (!cycles(before))
        finish(0);
    if (strcmp(how, "not") == 0)
        finish(cycles(after));
    if (strcmp(how, "refused") == 0) {
        /* Probes the kernel's support: an invalid filter, and an invalid mode. */
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) != -1 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 8) != -1 ||
            prctl(PR_SET_SECCOMP, 77, 0) != -1)
            finish(0);
        finish(cycles(after));
    }
    if (strcmp(how, "strict") == 0) {
        int fd = open("data", O_RDONLY), good = 1;
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
            finish(0);
        char byte;
        for (int i = 0; i < after; i++)
            good &= read(fd, &byte, 1) >= 0;
        good &= write(1, "ok\n", 3) == 3;
        syscall(SYS_exit, !good);
    }
    if (strcmp(how, "clock") == 0) {
        if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV) != 0)
            finish(0);
        pthread_t thread;
        void *good = NULL;
        confined = 1;
        pthread_create(&thread, NULL, reader, NULL);
        pthread_join(thread, &good);
        finish(good && cycles(after));
    }
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    ALLOW(plain);
    if (strstr(how, "thread") || strstr(how, "child") || strstr(how, "exec"))
        ALLOW(threads);
    if (strstr(how, "exec"))
        ALLOW(programs);
    int otherwise = strstr(how, "errno") ? SECCOMP_RET_ERRNO | 1 : SECCOMP_RET_KILL_PROCESS;
    add(BPF_RET | BPF_K, strstr(how, "anything") ? SECCOMP_RET_ALLOW : otherwise, 0, 0);
    if (strstr(how, "thread")) {
        /* One thread that exists already and is confined by another, and one that starts later. */
        pthread_t first, second;
        void *good[2] = { 0, 0 };
        pthread_create(&first, NULL, reader, NULL);
        while (!ready)
            ;
        if (!cycles(10))
            finish(0);
        install(how);
        confined = 1;
        pthread_create(&second, NULL, reader, NULL);
        pthread_join(first, &good[0]);
        pthread_join(second, &good[1]);
        finish(good[0] && good[1] && cycles(after));
    }
    install(how);
    if (strstr(how, "child")) {
        int child = fork(), status = 1;
        if (child == 0)
            _exit(!cycles(after));
        finish(wait4(child, &status, 0, NULL) == child && status == 0 && cycles(after));
    }
    if (strstr(how, "run")) {
        execve(words[4], words + 4, environ);
        finish(0);
    }
    if (strstr(how, "run")) {
        execve(words[4], words + 4, environ);
        finish(0);
    }
    if (strstr(how, "exec")) {
        execve("/proc/self/exe", (char *[]){ words[0], "not", words[3], words[3], NULL }, environ);
        finish(0);
    }
    finish(cycles(after));
}
