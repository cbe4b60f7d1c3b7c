/* Makes the requests whose records tests/records.rs checks. The first argument selects the part. */
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void check(long result)
{
    if (result < 0) {
        perror("records");
        exit(1);
    }
}

static void positions(void)
{
    char buffer[64] = {0};
    struct iovec vector[2] = {{buffer, 3}, {buffer, 4}};
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644), copy;
    check(write(fd, buffer, 10));           /* 0 */
    check(writev(fd, vector, 2));           /* 10 */
    copy = dup(fd);
    check(lseek(copy, 5, SEEK_SET));
    check(read(fd, buffer, 4));             /* 5 */
    check(read(copy, buffer, 64));          /* 9, 8 bytes */
    check(read(fd, buffer, 64));            /* 17, end */
    check(pwrite(fd, buffer, 2, 40));
    check(lseek(fd, -2, SEEK_END));
    check(readv(fd, vector, 2));            /* 40, 2 bytes */
    check(fcntl(fd, F_SETFL, O_APPEND));
    check(lseek(fd, 0, SEEK_SET));
    check(write(fd, buffer, 1));            /* 42, for O_APPEND */
    check(close(fd));
    check(write(copy, buffer, 1));          /* 43 */
    check(close(copy));
    fd = open("file", O_RDONLY);
    check(read(fd, buffer, 5));             /* 0, of a new handle */
    check(dup2(fd, 50));
    check(close(fd));
    check(read(50, buffer, 5));             /* 5 */
    check(close_range(50, 50, 0));
}

/* The terminal stays open until this process ends. */
static pid_t fork_on_a_terminal(void)
{
    int terminal;
    return forkpty(&terminal, NULL, NULL, NULL);
}

static void share_a_file(pid_t (*make_a_child)(void))
{
    char buffer[8];
    int status, fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0644);
    check(ftruncate(fd, 100));
    check(read(fd, buffer, 3));             /* 0 */
    if (make_a_child() == 0) {
        check(read(fd, buffer, 4));         /* 3 */
        check(close(fd));
        _exit(0);
    }
    check(wait(&status));
    check(read(fd, buffer, 5));             /* 7: the child has read */
    check(close(fd));
}

static void shared(void)
{
    char buffer[8];
    int status;
    share_a_file(fork);
    share_a_file(fork_on_a_terminal);
    check(read(0, buffer, 2));              /* opened by the test, at position 6 */
    if (vfork() == 0) {
        close(0);
        _exit(0);
    }
    check(wait(&status));
    check(read(0, buffer, 2));              /* 8 */
}

/* All kinds of descriptors without a file. tests/records.rs checks which calls are recorded. */
static void descriptors(void)
{
    int pair[2], fd, copy;
    char buffer[4] = "abc", name[64];
    FILE *stream;
    check(pipe(pair));
    check(write(pair[1], buffer, 3));
    check(read(pair[0], buffer, 3));
    check((stream = fdopen(pair[1], "w")) ? 0 : -1);
    check(fputs("abc", stream));
    check(fclose(stream));
    check(close(pair[0]));
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    check(write(pair[1], buffer, 3));
    check(read(pair[0], buffer, 3));
    check(close(pair[0]));
    check(close(pair[1]));
    check(fd = eventfd(0, 0));
    check(write(fd, "12345678", 8));
    check(close(fd));
    check(fd = memfd_create("memory", 0));
    check(write(fd, buffer, 3));
    check(close(fd));
    check(fd = open("/dev/null", O_RDWR));
    check(write(fd, buffer, 3));
    check(close(fd));
    check(fd = posix_openpt(O_RDWR | O_NOCTTY));
    check(write(fd, buffer, 3));
    check(ptsname_r(fd, name, sizeof name));
    check(close(fd));
    check(mkfifo("fifo", 0600));
    check(fd = open("fifo", O_RDWR));
    check(write(fd, buffer, 3));
    check(copy = dup(fd));
    check(read(copy, buffer, 3));
    check(close(copy));
    check(close(fd));
}

static void paths(void)
{
    struct stat st;
    char name[] = "temp-XXXXXX";
    int fd, directory;
    check(mkdir("dir", 0755));
    check(mkdir("dir//sub/", 0700));
    check(chdir("dir"));
    directory = open("./sub", O_RDONLY | O_DIRECTORY);
    fd = openat(directory, "x", O_WRONLY | O_CREAT, 0600);
    check(close(fd));
    check(stat("sub/../sub/x", &st));
    check(rename("sub/x", "y"));
    check(link("y", "z"));
    check(symlink("../somewhere", "s"));
    check(setxattr("y", "user.a", "v", 1, 0) < 0 && errno != ENOTSUP ? -1 : 0);
    stat("none", &st);
    fd = mkstemp(name);
    check(close(fd));
    check(fchdir(directory));
    check(unlink("../z"));
    check(access("/etc/passwd", R_OK));
    check(access("/proc/self/maps", R_OK));
    check(access("/usr/lib/libnone.so.1", R_OK) < 0 ? 0 : 0);
    check(access("hidden.o", R_OK) < 0 ? 0 : 0);
}

static void streams(void)
{
    char line[32];
    int number;
    FILE *file = fopen("stream", "w+");
    fprintf(file, "%d\n", 1234);            /* 0, 5 */
    fputs("abc\n", file);                   /* 5, 4 */
    fputc('x', file);                       /* 9 */
    fwrite("12345678", 4, 2, file);         /* 10, 8 */
    fseek(file, 0, SEEK_SET);
    check(fscanf(file, "%d", &number));     /* 0, 4 */
    fgets(line, sizeof line, file);         /* 4, 1 */
    fgets(line, sizeof line, file);         /* 5, 4 */
    fgetc(file);                            /* 9 */
    ungetc('x', file);
    check(fread(line, 5, 3, file));         /* 9, 9 of 15 */
    fgetc(file);                            /* 18, end */
    fclose(file);
    file = fopen("stream", "a");
    fputs("z", file);                       /* unknown */
    fclose(file);
    puts("out");                            /* to a file, at 0 */
    printf("%s\n", "formatted");            /* 4 */
    fflush(stdout);
}

static void others(void)
{
    char buffer[16] = {0};
    int pair[2], from = open("from", O_RDWR | O_CREAT, 0600), to = open("to", O_RDWR | O_CREAT, 0600);
    off_t offset = 3;
    loff_t out = 7;
    struct aiocb block = {.aio_fildes = from, .aio_offset = 11, .aio_buf = buffer, .aio_nbytes = 6};
    const struct aiocb *blocks[] = {&block};
    check(ftruncate(from, 4096));
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    check(sendfile(pair[0], from, &offset, 5));              /* 3 */
    check(read(pair[1], buffer, 5));                         /* not recorded */
    check(copy_file_range(from, NULL, to, &out, 20, 0));     /* from 0 to 7 */
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, from, 0);
    char *other = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(msync(map, 4096, MS_SYNC));
    check(munmap(other, 4096));
    check(munmap(map, 4096));
    check(aio_read(&block));
    check(aio_suspend(blocks, 1, NULL));
    check(aio_return(&block) == 6 ? 0 : -1);
    DIR *directory = opendir(".");
    while (readdir(directory))
        ;
    closedir(directory);
}

int main(int count, char **arguments)
{
    const char *part = count > 1 ? arguments[1] : "";
    strcmp(part, "positions") ? 0 : (positions(), 0);
    strcmp(part, "shared") ? 0 : (shared(), 0);
    strcmp(part, "descriptors") ? 0 : (descriptors(), 0);
    strcmp(part, "paths") ? 0 : (paths(), 0);
    strcmp(part, "streams") ? 0 : (streams(), 0);
    strcmp(part, "others") ? 0 : (others(), 0);
    return 0;
}
