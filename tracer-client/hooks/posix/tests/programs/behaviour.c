/* Says how calls behave: run with and without the hook, it must say the same. Many are mistakes on purpose. */
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

extern char **environ;

/* Without a hooked call, so that the report itself is not what is tested. */
static void say(const char *what, long result, int number)
{
    char line[200];
    int length = snprintf(line, sizeof line, "%s: %ld %d\n", what, result, number);
    (void)!write(1, line, length);
}

#define SAY(call)                            \
    do {                                     \
        errno = 0;                           \
        long result_ = (long)(call);         \
        int number_ = errno;                 \
        say(#call, result_, number_);        \
    } while (0)

static void *bad = (void *)8;

static void errors(void)
{
    struct stat st;
    struct statvfs vfs;
    char buffer[16];
    struct iovec *vector = bad;
    SAY(open(NULL, O_RDONLY));
    SAY(open(bad, O_RDONLY));
    SAY(open("", O_RDONLY));
    SAY(open("/none/x", O_RDONLY));
    SAY(open("dir", O_WRONLY));
    SAY(openat(-1, "x", O_RDONLY));
    SAY(openat(-1, bad, O_RDONLY));
    SAY(open(bad, O_CREAT | O_DIRECTORY | 0x40000000, 0600));
    SAY(fopen("none", "r") != NULL);
    SAY(fopen("x", "?") != NULL);
    SAY(fopen(bad, "r") != NULL);
    SAY(read(-1, buffer, 1));
    SAY(read(9999999, buffer, 1));
    SAY(read(0x7fffffff, buffer, 1));
    SAY(write(-5, buffer, 1));
    SAY(close(-1));
    SAY(close(77));
    SAY(dup(77));
    SAY(dup2(77, 5));
    SAY(dup2(1, 1));
    SAY(fcntl(77, F_DUPFD, 3));
    SAY(fcntl(1, F_GETFD));
    SAY(lseek(77, 0, SEEK_SET));
    SAY(readv(1, vector, -1));
    SAY(stat(bad, &st));
    SAY(stat("none", bad));
    SAY(lstat("", &st));
    SAY(fstatat(AT_FDCWD, "x", &st, 0x4000000));
    SAY(fstatat(AT_FDCWD, bad, &st, 0x4000000));
    SAY(statvfs("none", &vfs));
    SAY(rename("none", bad));
    SAY(rename(bad, "x"));
    SAY(link("none", bad));
    SAY(symlink("x", bad));
    SAY(symlink(bad, "x"));
    SAY(renameat2(-1, bad, -1, bad, 0xffff));
    SAY(unlinkat(AT_FDCWD, bad, 0xffff));
    SAY(getxattr("none", bad, NULL, 0));
    SAY(getxattr(bad, "user.x", NULL, 0));
    SAY(fgetxattr(1, bad, NULL, 0));
    SAY(opendir("none") != NULL);
    SAY(chdir(bad));
    SAY(chdir("none"));
    SAY(mkdir("dir", 0700));
    SAY(readlink("dir", buffer, sizeof buffer));
    SAY(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 77, 0));
    SAY(munmap((void *)1, 1));
    SAY(posix_fallocate(77, 0, 1));
    SAY(posix_fadvise(77, 0, 1, 0));
    SAY(truncate("none", 0));
    SAY(access(bad, R_OK));
    SAY(faccessat(-1, bad, R_OK, 0xffffff));
    SAY(copy_file_range(77, bad, 78, NULL, 1, 0));
    SAY(close_range(5, 3, 0));
}

static void streams(void)
{
    char line[64], word[64];
    char *long_line = NULL;
    size_t room = 0;
    int number;
    FILE *file = fopen("stream", "w+");
    SAY(fprintf(file, "%s %d %.2f %ld %c\n", "abc", 7, 2.5, 1L << 40, 'z'));
    SAY(fputs("second\n", file));
    SAY(fputc('q', file));
    SAY(fwrite("1234567890", 3, 3, file));
    SAY(fflush(file));
    SAY(fseek(file, 0, SEEK_SET));
    SAY(fscanf(file, "%63s %d", word, &number));
    SAY(strcmp(word, "abc") + number);
    SAY(fgets(line, sizeof line, file) != NULL);
    SAY(strcmp(line, " 2.50 1099511627776 z\n"));
    SAY(getline(&long_line, &room, file));
    SAY(fgetc(file));
    SAY(ungetc('r', file));
    SAY(ftell(file));
    SAY(fread(line, 1, sizeof line, file));
    SAY(fgetc(file));
    SAY(fread(line, 4, 2, file));
    SAY(feof(file));
    rewind(file);
    SAY(fgetc(file));
    SAY(freopen("stream", "r", file) == file);
    SAY(fputc('x', file));
    SAY(fclose(file));
    SAY(dprintf(1, "%d-%s\n", 5, "dprintf"));
    SAY(printf("%*d|%-6s|%f\n", 6, 42, "ab", 1.5));
    fflush(stdout);
    file = fmemopen(line, sizeof line, "w");
    SAY(fprintf(file, "memory"));
    SAY(fclose(file));
    free(long_line);
    file = tmpfile();
    SAY(fputs("x", file));
    SAY(fclose(file));
}

static void processes(void)
{
    char line[64] = "";
    int status = -1;
    pid_t child;
    char *const arguments[] = {"sh", "-c", "exit 3", NULL};
    FILE *pipe_ = popen("echo from a pipe", "r");
    SAY(fgets(line, sizeof line, pipe_) != NULL);
    SAY(strcmp(line, "from a pipe\n"));
    SAY(pclose(pipe_));
    SAY(system("exit 4"));
    SAY(posix_spawnp(&child, "sh", NULL, NULL, arguments, environ));
    SAY(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    child = vfork();
    if (child == 0) {
        int fd = open("dir", O_RDONLY);
        dup2(fd, 40);
        close(0);
        execvp("sh", arguments);
        _exit(1);
    }
    SAY(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    SAY(fcntl(0, F_GETFD) == -1);
    child = vfork();
    if (child == 0)
        _exit(9);
    SAY(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
    child = fork();
    if (child == 0) {
        SAY(write(1, "in the child\n", 13));
        _exit(5);
    }
    SAY(waitpid(child, &status, 0) == child);
    SAY(WEXITSTATUS(status));
}

static int ends[2];
static volatile int cleaned;

static void clean(void *unused)
{
    (void)unused;
    cleaned++;
}

static void *wait_in_read(void *unused)
{
    char byte;
    pthread_cleanup_push(clean, NULL);
    (void)!read(ends[0], &byte, 1);
    pthread_cleanup_pop(0);
    return unused;
}

static void *wait_in_fgets(void *unused)
{
    char line[10];
    FILE *file = fdopen(ends[0], "r");
    pthread_cleanup_push(clean, NULL);
    (void)!fgets(line, sizeof line, file);
    pthread_cleanup_pop(0);
    return unused;
}

static void *wait_in_lock(void *unused)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open("locked", O_RDWR);
    pthread_cleanup_push(clean, NULL);
    fcntl(fd, F_OFD_SETLKW, &lock);
    pthread_cleanup_pop(0);
    return unused;
}

static void cancelled(void *(*run)(void *))
{
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, run, NULL);
    usleep(50000);
    SAY(pthread_cancel(thread));
    SAY(pthread_join(thread, &result));
    SAY(result == PTHREAD_CANCELED);
    SAY(cleaned);
}

static void cancellation(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open("locked", O_RDWR | O_CREAT, 0600);
    SAY(pipe(ends));
    SAY(fcntl(fd, F_OFD_SETLK, &lock));
    cancelled(wait_in_read);
    cancelled(wait_in_lock);
    cancelled(wait_in_fgets);
    close(fd);
}

static volatile int handled;

static void handler(int signal)
{
    int fd = open("dir", O_RDONLY);
    (void)signal;
    errno = 0;
    close(fd);
    handled += fd >= 0;
}

static void interrupts(void)
{
    struct sigaction action = {.sa_handler = handler};
    struct stat st;
    long good = 0;
    sigaction(SIGALRM, &action, NULL);
    ualarm(1000, 200);
    for (int i = 0; i < 200000 && handled < 20; i++)
        good += stat("dir", &st) == 0;
    ualarm(0, 0);
    SAY(handled >= 20);
    SAY(good > 0);
}

int main(void)
{
    mkdir("dir", 0700);
    errors();
    streams();
    processes();
    cancellation();
    interrupts();
    return 0;
}
