/* Prints results and errno of many calls. With and without the hook the output must be equal.
 * Many calls are wrong on purpose. */
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

/* Prints a line without a call of stdio that is under test. */
static void print_result(const char *call, long result, int number)
{
    char line[200];
    int length = snprintf(line, sizeof line, "%s: %ld %d\n", call, result, number);
    (void)!write(1, line, length);
}

#define CHECK(call)                            \
    do {                                       \
        errno = 0;                             \
        long result_ = (long)(call);           \
        int number_ = errno;                   \
        print_result(#call, result_, number_); \
    } while (0)

static void *bad = (void *)8;

static void errors(void)
{
    struct stat st;
    struct statvfs vfs;
    char buffer[16];
    struct iovec *vector = bad;
    CHECK(open(NULL, O_RDONLY));
    CHECK(open(bad, O_RDONLY));
    CHECK(open("", O_RDONLY));
    CHECK(open("/none/x", O_RDONLY));
    CHECK(open("dir", O_WRONLY));
    CHECK(openat(-1, "x", O_RDONLY));
    CHECK(openat(-1, bad, O_RDONLY));
    CHECK(open(bad, O_CREAT | O_DIRECTORY | 0x40000000, 0600));
    CHECK(fopen("none", "r") != NULL);
    CHECK(fopen("x", "?") != NULL);
    CHECK(fopen(bad, "r") != NULL);
    CHECK(read(-1, buffer, 1));
    CHECK(read(9999999, buffer, 1));
    CHECK(read(0x7fffffff, buffer, 1));
    CHECK(write(-5, buffer, 1));
    CHECK(close(-1));
    CHECK(close(77));
    CHECK(dup(77));
    CHECK(dup2(77, 5));
    CHECK(dup2(1, 1));
    CHECK(fcntl(77, F_DUPFD, 3));
    CHECK(fcntl(1, F_GETFD));
    CHECK(lseek(77, 0, SEEK_SET));
    CHECK(readv(1, vector, -1));
    CHECK(stat(bad, &st));
    CHECK(stat("none", bad));
    CHECK(lstat("", &st));
    CHECK(fstatat(AT_FDCWD, "x", &st, 0x4000000));
    CHECK(fstatat(AT_FDCWD, bad, &st, 0x4000000));
    CHECK(statvfs("none", &vfs));
    CHECK(rename("none", bad));
    CHECK(rename(bad, "x"));
    CHECK(link("none", bad));
    CHECK(symlink("x", bad));
    CHECK(symlink(bad, "x"));
    CHECK(renameat2(-1, bad, -1, bad, 0xffff));
    CHECK(unlinkat(AT_FDCWD, bad, 0xffff));
    CHECK(getxattr("none", bad, NULL, 0));
    CHECK(getxattr(bad, "user.x", NULL, 0));
    CHECK(fgetxattr(1, bad, NULL, 0));
    CHECK(opendir("none") != NULL);
    CHECK(chdir(bad));
    CHECK(chdir("none"));
    CHECK(mkdir("dir", 0700));
    CHECK(readlink("dir", buffer, sizeof buffer));
    CHECK(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 77, 0));
    CHECK(munmap((void *)1, 1));
    CHECK(posix_fallocate(77, 0, 1));
    CHECK(posix_fadvise(77, 0, 1, 0));
    CHECK(truncate("none", 0));
    CHECK(access(bad, R_OK));
    CHECK(faccessat(-1, bad, R_OK, 0xffffff));
    CHECK(copy_file_range(77, bad, 78, NULL, 1, 0));
    CHECK(close_range(5, 3, 0));
}

static void streams(void)
{
    char line[64], word[64];
    char *long_line = NULL;
    size_t room = 0;
    int number;
    FILE *file = fopen("stream", "w+");
    CHECK(fprintf(file, "%s %d %.2f %ld %c\n", "abc", 7, 2.5, 1L << 40, 'z'));
    CHECK(fputs("second\n", file));
    CHECK(fputc('q', file));
    CHECK(fwrite("1234567890", 3, 3, file));
    CHECK(fflush(file));
    CHECK(fseek(file, 0, SEEK_SET));
    CHECK(fscanf(file, "%63s %d", word, &number));
    CHECK(strcmp(word, "abc") + number);
    CHECK(fgets(line, sizeof line, file) != NULL);
    CHECK(strcmp(line, " 2.50 1099511627776 z\n"));
    CHECK(getline(&long_line, &room, file));
    CHECK(fgetc(file));
    CHECK(ungetc('r', file));
    CHECK(ftell(file));
    CHECK(fread(line, 1, sizeof line, file));
    CHECK(fgetc(file));
    CHECK(fread(line, 4, 2, file));
    CHECK(feof(file));
    rewind(file);
    CHECK(fgetc(file));
    CHECK(freopen("stream", "r", file) == file);
    CHECK(fputc('x', file));
    CHECK(fclose(file));
    CHECK(dprintf(1, "%d-%s\n", 5, "dprintf"));
    CHECK(printf("%*d|%-6s|%f\n", 6, 42, "ab", 1.5));
    fflush(stdout);
    file = fmemopen(line, sizeof line, "w");
    CHECK(fprintf(file, "memory"));
    CHECK(fclose(file));
    free(long_line);
    file = tmpfile();
    CHECK(fputs("x", file));
    CHECK(fclose(file));
}

static void processes(void)
{
    char line[64] = "";
    int status = -1;
    pid_t child;
    char *const arguments[] = {"sh", "-c", "exit 3", NULL};
    FILE *pipe_ = popen("echo from a pipe", "r");
    CHECK(fgets(line, sizeof line, pipe_) != NULL);
    CHECK(strcmp(line, "from a pipe\n"));
    CHECK(pclose(pipe_));
    CHECK(system("exit 4"));
    CHECK(posix_spawnp(&child, "sh", NULL, NULL, arguments, environ));
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status));
    child = vfork();
    if (child == 0) {
        int fd = open("dir", O_RDONLY);
        dup2(fd, 40);
        close(0);
        execvp("sh", arguments);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status));
    CHECK(fcntl(0, F_GETFD) == -1);
    child = vfork();
    if (child == 0)
        _exit(9);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status));
    child = fork();
    if (child == 0) {
        CHECK(write(1, "in the child\n", 13));
        _exit(5);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WEXITSTATUS(status));
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
    CHECK(pthread_cancel(thread));
    CHECK(pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED);
    CHECK(cleaned);
}

static void cancellation(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open("locked", O_RDWR | O_CREAT, 0600);
    CHECK(pipe(ends));
    CHECK(fcntl(fd, F_OFD_SETLK, &lock));
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
    CHECK(handled >= 20);
    CHECK(good > 0);
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
