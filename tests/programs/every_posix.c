/* Every POSIX call, by every name that the C library has for it. */
#define _GNU_SOURCE
#include "expect.h"
#include <aio.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

/* Exported for programs built with fortification or for old glibc versions. No header declares
 * them. */
int __open_2(const char *, int), __open64_2(const char *, int), __openat_2(int, const char *, int),
    __openat64_2(int, const char *, int), __open(const char *, int, ...), __open64(const char *, int, ...);
ssize_t __read_chk(int, void *, size_t, size_t), __pread_chk(int, void *, size_t, off_t, size_t),
    __pread64_chk(int, void *, size_t, off_t, size_t), __readlink_chk(const char *, char *, size_t, size_t),
    __readlinkat_chk(int, const char *, char *, size_t, size_t), __read(int, void *, size_t),
    __write(int, const void *, size_t), __pread64(int, void *, size_t, off_t),
    __pwrite64(int, const void *, size_t, off_t);
off_t __lseek(int, off_t, int);
int __close(int), __dup2(int, int), __fcntl(int, int, ...);
int __xstat(int, const char *, struct stat *), __fxstat(int, int, struct stat *),
    __lxstat(int, const char *, struct stat *), __fxstatat(int, int, const char *, struct stat *, int);
int __xmknod(int, const char *, mode_t, dev_t *), __xmknodat(int, int, const char *, mode_t, dev_t *),
    __statfs(const char *, struct statfs *), lchmod(const char *, mode_t);
int __xstat64(int, const char *, struct stat64 *), __fxstat64(int, int, struct stat64 *),
    __lxstat64(int, const char *, struct stat64 *), __fxstatat64(int, int, const char *, struct stat64 *, int);

#define P(op, path, path2, offset, length, arg, call) OK("posix", op, path, path2, offset, length, arg, call)
#define FAILS(op, path, path2, offset, length, arg, call) CALL("posix", op, path, path2, offset, length, arg, call)
#define MODE(flags, mode) ((long)(flags) | (long)(mode) << 32)

static char buffer[256];
static struct iovec vector[2] = {{buffer, 10}, {buffer + 10, 20}};

static void closed(int fd, const char *path) { P("close", path, NULL, NO, NO, NO, close(fd)); }

static void opens(void) {
    int rw = O_RDWR | O_CREAT, fd;
    closed(P("open", "f", NULL, NO, NO, MODE(rw, 0640), open("f", rw, 0640)), "f");
    closed(P("open", "f", NULL, NO, NO, MODE(rw, 0640), open64("f", rw, 0640)), "f");
    closed(P("open", "f", NULL, NO, NO, MODE(rw, 0640), __open("f", rw, 0640)), "f");
    closed(P("open", "f", NULL, NO, NO, MODE(rw, 0640), __open64("f", rw, 0640)), "f");
    closed(P("open", "f", NULL, NO, NO, O_RDONLY, __open_2("f", O_RDONLY)), "f");
    closed(P("open", "f", NULL, NO, NO, O_RDONLY, __open64_2("f", O_RDONLY)), "f");
    fd = P("openat", "f", NULL, NO, NO, MODE(rw, 0600), openat(AT_FDCWD, "f", rw, 0600));
    P("close", "f", NULL, NO, NO, NO, __close(fd));
    closed(P("openat", "f", NULL, NO, NO, MODE(rw, 0600), openat64(AT_FDCWD, "f", rw, 0600)), "f");
    closed(P("openat", "f", NULL, NO, NO, O_RDONLY, __openat_2(AT_FDCWD, "f", O_RDONLY)), "f");
    closed(P("openat", "f", NULL, NO, NO, O_RDONLY, __openat64_2(AT_FDCWD, "f", O_RDONLY)), "f");
    closed(P("creat", "c", NULL, NO, NO, MODE(O_CREAT | O_WRONLY | O_TRUNC, 0600), creat("c", 0600)), "c");
    closed(P("creat", "c", NULL, NO, NO, MODE(O_CREAT | O_WRONLY | O_TRUNC, 0600), creat64("c", 0600)), "c");
    FAILS("open", "none/f", NULL, NO, NO, O_RDONLY, open("none/f", O_RDONLY));
    FAILS("open", "f", NULL, NO, NO, MODE(rw | O_EXCL, 0600), open("f", rw | O_EXCL, 0600));
    /* An invalid descriptor has no file, so there is no event. */
    if (close(777) != -1)
        fail("close");

    /* Relative to a directory other than the working directory. */
    P("mkdir", "d", NULL, NO, NO, 0755, mkdir("d", 0755));
    int dir = P("open", "d", NULL, NO, NO, O_RDONLY | O_DIRECTORY, open("d", O_RDONLY | O_DIRECTORY));
    closed(P("openat", "d/in", NULL, NO, NO, MODE(rw, 0600), openat(dir, "in", rw, 0600)), "d/in");
    P("mkdirat", "d/e", NULL, NO, NO, 0700, mkdirat(dir, "e", 0700));
    P("unlinkat", "d/in", NULL, NO, NO, 0, unlinkat(dir, "in", 0));
    P("unlinkat", "d/e", NULL, NO, NO, AT_REMOVEDIR, unlinkat(dir, "e", AT_REMOVEDIR));
    closed(dir, "d");

    long temporary = MODE(O_RDWR | O_CREAT | O_EXCL, 0600);
    static int (*const make[])(char *) = {mkstemp, mkstemp64};
    for (int i = 0; i < 2; i++) {
        char name[] = "tmpXXXXXX";
        closed(P("mkstemp", "?", NULL, NO, NO, temporary, make[i](name)), "?");
    }
    char a[] = "tmpXXXXXX", b[] = "tmpXXXXXX", c[] = "tmpXXXXXX.s", d[] = "tmpXXXXXX.s", e[] = "tmpXXXXXX.s", f[] = "tmpXXXXXX.s";
    closed(P("mkstemp", "?", NULL, NO, NO, temporary | O_CLOEXEC, mkostemp(a, O_CLOEXEC)), "?");
    closed(P("mkstemp", "?", NULL, NO, NO, temporary | O_CLOEXEC, mkostemp64(b, O_CLOEXEC)), "?");
    closed(P("mkstemp", "?", NULL, NO, NO, temporary, mkstemps(c, 2)), "?");
    closed(P("mkstemp", "?", NULL, NO, NO, temporary, mkstemps64(d, 2)), "?");
    closed(P("mkstemp", "?", NULL, NO, NO, temporary | O_CLOEXEC, mkostemps(e, 2, O_CLOEXEC)), "?");
    closed(P("mkstemp", "?", NULL, NO, NO, temporary | O_CLOEXEC, mkostemps64(f, 2, O_CLOEXEC)), "?");
    char g[] = "dirXXXXXX";
    if (!mkdtemp(g))
        fail("mkdtemp");
    expect("posix", "mkdtemp", g, NULL, NO, NO, NO, 0);
}

static void data(void) {
    int fd = P("open", "data", NULL, NO, NO, MODE(O_RDWR | O_CREAT, 0600), open("data", O_RDWR | O_CREAT, 0600));
    P("write", "data", NULL, 0, 100, NO, write(fd, buffer, 100));
    P("write", "data", NULL, 100, 28, NO, __write(fd, buffer, 28));
    P("lseek", "data", NULL, 0, NO, SEEK_SET, lseek(fd, 0, SEEK_SET));
    P("read", "data", NULL, 0, 30, NO, read(fd, buffer, 30));
    P("read", "data", NULL, 30, 10, NO, __read(fd, buffer, 10));
    P("read", "data", NULL, 40, 10, NO, __read_chk(fd, buffer, 10, sizeof buffer));
    P("lseek", "data", NULL, -8, NO, SEEK_END, lseek64(fd, -8, SEEK_END));
    P("read", "data", NULL, 120, 30, NO, read(fd, buffer, 30));
    P("read", "data", NULL, 128, 30, NO, read(fd, buffer, 30));
    P("lseek", "data", NULL, 5, NO, SEEK_CUR, __lseek(fd, 5, SEEK_CUR));
    P("pread", "data", NULL, 7, 11, NO, pread(fd, buffer, 11, 7));
    P("pread", "data", NULL, 8, 12, NO, pread64(fd, buffer, 12, 8));
    P("pread", "data", NULL, 9, 13, NO, __pread64(fd, buffer, 13, 9));
    P("pread", "data", NULL, 10, 14, NO, __pread_chk(fd, buffer, 14, 10, sizeof buffer));
    P("pread", "data", NULL, 11, 15, NO, __pread64_chk(fd, buffer, 15, 11, sizeof buffer));
    P("pwrite", "data", NULL, 1000, 16, NO, pwrite(fd, buffer, 16, 1000));
    P("pwrite", "data", NULL, 1001, 17, NO, pwrite64(fd, buffer, 17, 1001));
    P("pwrite", "data", NULL, 1002, 18, NO, __pwrite64(fd, buffer, 18, 1002));
    P("readv", "data", NULL, 133, 30, NO, readv(fd, vector, 2));
    P("writev", "data", NULL, 163, 30, NO, writev(fd, vector, 2));
    P("preadv", "data", NULL, 3, 30, NO, preadv(fd, vector, 2, 3));
    P("preadv", "data", NULL, 4, 30, NO, preadv64(fd, vector, 2, 4));
    P("pwritev", "data", NULL, 5, 30, NO, pwritev(fd, vector, 2, 5));
    P("pwritev", "data", NULL, 6, 30, NO, pwritev64(fd, vector, 2, 6));
    P("preadv2", "data", NULL, 7, 30, NO, preadv2(fd, vector, 2, 7, 0));
    P("preadv2", "data", NULL, 8, 30, NO, preadv64v2(fd, vector, 2, 8, 0));
    P("pwritev2", "data", NULL, 9, 30, NO, pwritev2(fd, vector, 2, 9, 0));
    P("pwritev2", "data", NULL, 10, 30, NO, pwritev64v2(fd, vector, 2, 10, 0));
    /* Offset -1 is the file position, which advances. */
    P("preadv2", "data", NULL, 193, 30, NO, preadv2(fd, vector, 2, -1, 0));
    P("lseek", "data", NULL, 0, NO, SEEK_CUR, lseek(fd, 0, SEEK_CUR));
    FAILS("read", "data", NULL, 223, 10, NO, read(fd, (void *)8, 10));
    FAILS("lseek", "data", NULL, -5, NO, SEEK_SET, lseek(fd, -5, SEEK_SET));
    /* -1: the event has no offset. */
    FAILS("pread", "data", NULL, NO, 10, NO, pread(fd, buffer, 10, -1));
    if (read(777, buffer, 10) != -1)
        fail("read");

    P("fsync", "data", NULL, NO, NO, NO, fsync(fd));
    P("fdatasync", "data", NULL, NO, NO, NO, fdatasync(fd));
    P("sync_file_range", "data", NULL, 10, 20, NO, sync_file_range(fd, 10, 20, SYNC_FILE_RANGE_WRITE));
    P("syncfs", "data", NULL, NO, NO, NO, syncfs(fd));
    sync();
    expect("posix", "sync", NULL, NULL, NO, NO, NO, 0);
    P("ftruncate", "data", NULL, NO, 5000, NO, ftruncate(fd, 5000));
    P("ftruncate", "data", NULL, NO, 4000, NO, ftruncate64(fd, 4000));
    P("truncate", "data", NULL, NO, 3000, NO, truncate("data", 3000));
    P("truncate", "data", NULL, NO, 2000, NO, truncate64("data", 2000));
    P("fallocate", "data", NULL, 100, 9000, NO, fallocate(fd, 0, 100, 9000));
    P("fallocate", "data", NULL, 200, 9000, NO, fallocate64(fd, FALLOC_FL_KEEP_SIZE, 200, 9000));
    P("posix_fallocate", "data", NULL, 300, 9000, NO, posix_fallocate(fd, 300, 9000));
    P("posix_fallocate", "data", NULL, 400, 9000, NO, posix_fallocate64(fd, 400, 9000));
    P("posix_fadvise", "data", NULL, 10, 20, NO, posix_fadvise(fd, 10, 20, POSIX_FADV_WILLNEED));
    P("posix_fadvise", "data", NULL, 11, 21, NO, posix_fadvise64(fd, 11, 21, POSIX_FADV_WILLNEED));

    void *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    expect("posix", "mmap", "data", NULL, 0, 8192, NO, ANY);
    P("msync", "data", NULL, NO, 4096, NO, msync(map, 4096, MS_SYNC));
    P("munmap", "data", NULL, NO, 8192, NO, munmap(map, 8192));
    map = mmap64(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 4096);
    expect("posix", "mmap", "data", NULL, 4096, 4096, NO, ANY);
    P("munmap", "data", NULL, NO, 4096, NO, munmap(map, 4096));
    /* Moved and grown, the mapping still belongs to the file. */
    map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    expect("posix", "mmap", "data", NULL, 0, 4096, NO, ANY);
    map = mremap(map, 4096, 8192, MREMAP_MAYMOVE);
    P("munmap", "data", NULL, NO, 8192, NO, munmap(map, 8192));
    map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 17);
    expect("posix", "mmap", "data", NULL, 17, 4096, NO, -EINVAL);

    int out = P("open", "out", NULL, NO, NO, MODE(O_RDWR | O_CREAT, 0600), open("out", O_RDWR | O_CREAT, 0600));
    off_t from = 100, to = 300;
    P("sendfile", "out", "data", 0, 50, NO, sendfile(out, fd, &from, 50));
    P("sendfile", "out", "data", 50, 60, NO, sendfile64(out, fd, &from, 60));
    from = 10;
    P("copy_file_range", "out", "data", 300, 70, NO, copy_file_range(fd, &from, out, &to, 70, 0));
    int ends[2];
    if (pipe(ends))
        fail("pipe");
    P("splice", NULL, "data", NO, 80, NO, splice(fd, &(off_t){20}, ends[1], NULL, 80, 0));
    P("splice", "out", NULL, 500, 80, NO, splice(ends[0], NULL, out, &(off_t){500}, 80, 0));
    close(ends[0]);
    close(ends[1]);

    struct flock lock = {.l_type = F_RDLCK, .l_start = 0, .l_len = 10};
    P("fcntl", "data", NULL, NO, NO, F_SETLK, fcntl(fd, F_SETLK, &lock));
    P("fcntl", "data", NULL, NO, NO, F_GETLK, fcntl64(fd, F_GETLK, &lock));
    P("fcntl", "data", NULL, NO, NO, F_SETLKW, __fcntl(fd, F_SETLKW, &lock));
    /* Requests for flags are not I/O. */
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL));
    closed(P("fcntl", "data", NULL, NO, NO, F_DUPFD, fcntl(fd, F_DUPFD, 50)), "data");
    closed(P("fcntl", "data", NULL, NO, NO, F_DUPFD_CLOEXEC, fcntl(fd, F_DUPFD_CLOEXEC, 50)), "data");
    P("flock", "data", NULL, NO, NO, LOCK_EX, flock(fd, LOCK_EX));
    P("lseek", "data", NULL, 0, NO, SEEK_SET, lseek(fd, 0, SEEK_SET));
    P("lockf", "data", NULL, NO, 10, NO, lockf(fd, F_LOCK, 10));
    P("lockf", "data", NULL, NO, 11, NO, lockf64(fd, F_LOCK, 11));
    closed(P("dup", "data", NULL, NO, NO, NO, dup(fd)), "data");
    closed(P("dup2", "data", NULL, NO, NO, 60, dup2(fd, 60)), "data");
    closed(P("dup2", "data", NULL, NO, NO, 61, __dup2(fd, 61)), "data");
    closed(P("dup3", "data", NULL, NO, NO, MODE(62, O_CLOEXEC), dup3(fd, 62, O_CLOEXEC)), "data");

    struct aiocb request = {.aio_fildes = fd, .aio_buf = buffer, .aio_nbytes = 33, .aio_offset = 44};
    static int (*const start[])(struct aiocb *) = {aio_write, (int (*)(struct aiocb *))aio_write64, aio_read, (int (*)(struct aiocb *))aio_read64};
    for (int i = 0; i < 4; i++) {
        if (start[i](&request))
            fail("aio");
        while (aio_error(&request) == EINPROGRESS)
            usleep(1000);
        const char *op = i < 2 ? "aio_write" : "aio_read";
        P(op, "data", NULL, 44, 33, NO, i % 2 ? aio_return(&request) : aio_return64((struct aiocb64 *)&request));
    }
    for (int i = 0; i < 2; i++) {
        if (i ? aio_fsync(O_SYNC, &request) : aio_fsync64(O_SYNC, (struct aiocb64 *)&request))
            fail("aio_fsync");
        while (aio_error(&request) == EINPROGRESS)
            usleep(1000);
        P("aio_fsync", "data", NULL, NO, NO, NO, aio_return(&request));
    }
    closed(out, "out");
    closed(fd, "data");

    /* The position of a file opened for appending is where the write went. */
    fd = P("open", "data", NULL, NO, NO, O_WRONLY | O_APPEND, open("data", O_WRONLY | O_APPEND));
    P("write", "data", NULL, 9400, 5, NO, write(fd, buffer, 5));
    P("write", "data", NULL, 9405, 6, NO, write(fd, buffer, 6));
    int high = P("dup2", "data", NULL, NO, NO, 800, dup2(fd, 800));
    P("close_range", "?", NULL, NO, NO, ANY, close_range(high, 810, 0));
    closed(fd, "data");
}

static void attributes(void) {
    static struct stat s;
    static struct stat64 s64;
    static struct statx sx;
    static struct statfs fs;
    static struct statfs64 fs64;
    static struct statvfs vfs;
    static struct statvfs64 vfs64;
    int fd = P("open", "f", NULL, NO, NO, O_RDWR, open("f", O_RDWR));
    P("stat", "f", NULL, NO, NO, NO, stat("f", &s));
    P("stat", "f", NULL, NO, NO, NO, stat64("f", &s64));
    P("stat", "f", NULL, NO, NO, NO, __xstat(1, "f", &s));
    P("stat", "f", NULL, NO, NO, NO, __xstat64(1, "f", &s64));
    FAILS("stat", "none", NULL, NO, NO, NO, stat("none", &s));
    P("fstat", "f", NULL, NO, NO, NO, fstat(fd, &s));
    P("fstat", "f", NULL, NO, NO, NO, fstat64(fd, &s64));
    P("fstat", "f", NULL, NO, NO, NO, __fxstat(1, fd, &s));
    P("fstat", "f", NULL, NO, NO, NO, __fxstat64(1, fd, &s64));
    P("lstat", "f", NULL, NO, NO, NO, lstat("f", &s));
    P("lstat", "f", NULL, NO, NO, NO, lstat64("f", &s64));
    P("lstat", "f", NULL, NO, NO, NO, __lxstat(1, "f", &s));
    P("lstat", "f", NULL, NO, NO, NO, __lxstat64(1, "f", &s64));
    P("fstatat", "f", NULL, NO, NO, AT_SYMLINK_NOFOLLOW, fstatat(AT_FDCWD, "f", &s, AT_SYMLINK_NOFOLLOW));
    P("fstatat", "f", NULL, NO, NO, 0, fstatat64(AT_FDCWD, "f", &s64, 0));
    P("fstatat", "f", NULL, NO, NO, 0, __fxstatat(1, AT_FDCWD, "f", &s, 0));
    P("fstatat", "f", NULL, NO, NO, 0, __fxstatat64(1, AT_FDCWD, "f", &s64, 0));
    P("statx", "f", NULL, NO, NO, MODE(0, STATX_SIZE), statx(AT_FDCWD, "f", 0, STATX_SIZE, &sx));
    P("statfs", "f", NULL, NO, NO, NO, statfs("f", &fs));
    P("statfs", "f", NULL, NO, NO, NO, statfs64("f", &fs64));
    P("statfs", "f", NULL, NO, NO, NO, __statfs("f", &fs));
    P("fstatfs", "f", NULL, NO, NO, NO, fstatfs(fd, &fs));
    P("fstatfs", "f", NULL, NO, NO, NO, fstatfs64(fd, &fs64));
    P("statvfs", "f", NULL, NO, NO, NO, statvfs("f", &vfs));
    P("statvfs", "f", NULL, NO, NO, NO, statvfs64("f", &vfs64));
    P("fstatvfs", "f", NULL, NO, NO, NO, fstatvfs(fd, &vfs));
    P("fstatvfs", "f", NULL, NO, NO, NO, fstatvfs64(fd, &vfs64));
    P("access", "f", NULL, NO, NO, R_OK, access("f", R_OK));
    FAILS("access", "none", NULL, NO, NO, F_OK, access("none", F_OK));
    P("faccessat", "f", NULL, NO, NO, W_OK, faccessat(AT_FDCWD, "f", W_OK, 0));
    P("euidaccess", "f", NULL, NO, NO, R_OK, euidaccess("f", R_OK));
    P("euidaccess", "f", NULL, NO, NO, R_OK, eaccess("f", R_OK));
    P("chmod", "f", NULL, NO, NO, 0600, chmod("f", 0600));
    P("fchmod", "f", NULL, NO, NO, 0640, fchmod(fd, 0640));
    P("fchmodat", "f", NULL, NO, NO, 0644, fchmodat(AT_FDCWD, "f", 0644, 0));
    FAILS("fchmodat", "f", NULL, NO, NO, MODE(0644, AT_SYMLINK_NOFOLLOW), lchmod("f", 0644));
    P("chown", "f", NULL, NO, NO, ANY, chown("f", -1, -1));
    P("fchown", "f", NULL, NO, NO, ANY, fchown(fd, -1, -1));
    P("lchown", "f", NULL, NO, NO, ANY, lchown("f", -1, -1));
    P("fchownat", "f", NULL, NO, NO, ANY, fchownat(AT_FDCWD, "f", -1, -1, 0));
    struct timeval now[2] = {{1, 2}, {3, 4}};
    struct timespec exact[2] = {{1, 2}, {3, 4}};
    P("utime", "f", NULL, NO, NO, NO, utime("f", NULL));
    P("utimes", "f", NULL, NO, NO, NO, utimes("f", now));
    P("futimes", "f", NULL, NO, NO, NO, futimes(fd, now));
    P("lutimes", "f", NULL, NO, NO, NO, lutimes("f", now));
    P("futimesat", "f", NULL, NO, NO, NO, futimesat(AT_FDCWD, "f", now));
    P("utimensat", "f", NULL, NO, NO, ANY, utimensat(AT_FDCWD, "f", exact, 0));
    P("futimens", "f", NULL, NO, NO, NO, futimens(fd, exact));

    const char *name = "user.miot", *as = "=user.miot";
    P("setxattr", "f", as, NO, 3, NO, setxattr("f", name, "abc", 3, 0));
    P("lsetxattr", "f", as, NO, 4, NO, lsetxattr("f", name, "abcd", 4, 0));
    P("fsetxattr", "f", as, NO, 5, NO, fsetxattr(fd, name, "abcde", 5, 0));
    P("getxattr", "f", as, NO, 100, NO, getxattr("f", name, buffer, 100));
    P("lgetxattr", "f", as, NO, 101, NO, lgetxattr("f", name, buffer, 101));
    P("fgetxattr", "f", as, NO, 102, NO, fgetxattr(fd, name, buffer, 102));
    FAILS("getxattr", "f", "=user.none", NO, 100, NO, getxattr("f", "user.none", buffer, 100));
    P("listxattr", "f", NULL, NO, 103, NO, listxattr("f", buffer, 103));
    P("llistxattr", "f", NULL, NO, 104, NO, llistxattr("f", buffer, 104));
    P("flistxattr", "f", NULL, NO, 105, NO, flistxattr(fd, buffer, 105));
    P("removexattr", "f", as, NO, NO, NO, removexattr("f", name));
    setxattr("f", name, "abc", 3, 0);
    expect("posix", "setxattr", "f", as, NO, 3, NO, 0);
    P("lremovexattr", "f", as, NO, NO, NO, lremovexattr("f", name));
    setxattr("f", name, "abc", 3, 0);
    expect("posix", "setxattr", "f", as, NO, 3, NO, 0);
    P("fremovexattr", "f", as, NO, NO, NO, fremovexattr(fd, name));
    closed(fd, "f");
}

static void names(void) {
    P("link", "f", "hard", NO, NO, NO, link("f", "hard"));
    P("linkat", "f", "hard2", NO, NO, 0, linkat(AT_FDCWD, "f", AT_FDCWD, "hard2", 0));
    P("symlink", "?", "?", NO, NO, NO, symlink("f", "soft"));
    P("symlinkat", "?", "?", NO, NO, NO, symlinkat("f", AT_FDCWD, "soft2"));
    P("readlink", "soft", NULL, NO, 50, NO, readlink("soft", buffer, 50));
    P("readlinkat", "soft", NULL, NO, 51, NO, readlinkat(AT_FDCWD, "soft", buffer, 51));
    P("readlink", "soft", NULL, NO, 52, NO, __readlink_chk("soft", buffer, 52, sizeof buffer));
    P("readlinkat", "soft", NULL, NO, 53, NO, __readlinkat_chk(AT_FDCWD, "soft", buffer, 53, sizeof buffer));
    P("rename", "hard", "hard3", NO, NO, NO, rename("hard", "hard3"));
    P("renameat", "hard3", "hard4", NO, NO, NO, renameat(AT_FDCWD, "hard3", AT_FDCWD, "hard4"));
    P("renameat2", "hard4", "hard5", NO, NO, RENAME_NOREPLACE, renameat2(AT_FDCWD, "hard4", AT_FDCWD, "hard5", RENAME_NOREPLACE));
    P("unlink", "hard5", NULL, NO, NO, NO, unlink("hard5"));
    P("remove", "hard2", NULL, NO, NO, NO, remove("hard2"));
    P("mknod", "node", NULL, NO, NO, ANY, mknod("node", S_IFREG | 0600, 0));
    P("mknodat", "node2", NULL, NO, NO, ANY, mknodat(AT_FDCWD, "node2", S_IFREG | 0600, 0));
    P("mknod", "node3", NULL, NO, NO, ANY, __xmknod(0, "node3", S_IFREG | 0600, &(dev_t){0}));
    P("mknodat", "node4", NULL, NO, NO, ANY, __xmknodat(0, AT_FDCWD, "node4", S_IFREG | 0600, &(dev_t){0}));
    P("mkfifo", "fifo", NULL, NO, NO, 0600, mkfifo("fifo", 0600));
    P("mkfifoat", "fifo2", NULL, NO, NO, 0600, mkfifoat(AT_FDCWD, "fifo2", 0600));
    P("mkdir", "e", NULL, NO, NO, 0700, mkdir("e", 0700));
    P("rmdir", "e", NULL, NO, NO, NO, rmdir("e"));
    FAILS("rmdir", "none", NULL, NO, NO, NO, rmdir("none"));
    FAILS("unlink", "d", NULL, NO, NO, NO, unlink("d"));

    closed(P("creat", "d/x", NULL, NO, NO, MODE(O_CREAT | O_WRONLY | O_TRUNC, 0600), creat("d/x", 0600)), "d/x");
    DIR *dir = opendir("d");
    expect("posix", "opendir", "d", NULL, NO, NO, NO, dirfd(dir));
    for (int entry = 0; entry < 4; entry++) { /* . .. x and the end */
        int found = entry % 2 ? readdir(dir) != NULL : readdir64(dir) != NULL;
        expect("posix", "readdir", "d", NULL, NO, NO, NO, found);
    }
    rewinddir(dir);
    expect("posix", "rewinddir", "d", NULL, NO, NO, NO, 0);
    struct dirent one, *at;
    struct dirent64 one64, *at64;
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    readdir_r(dir, &one, &at);
    expect("posix", "readdir", "d", NULL, NO, NO, NO, 1);
    readdir64_r(dir, &one64, &at64);
    expect("posix", "readdir", "d", NULL, NO, NO, NO, 1);
    seekdir(dir, 0);
    expect("posix", "seekdir", "d", NULL, NO, NO, ANY, 0);
    P("closedir", "d", NULL, NO, NO, NO, closedir(dir));
    int fd = P("open", "d", NULL, NO, NO, O_RDONLY | O_DIRECTORY, open("d", O_RDONLY | O_DIRECTORY));
    P("getdents", "d", NULL, NO, 200, NO, getdents64(fd, buffer, 200));
    P("lseek", "d", NULL, 0, NO, SEEK_SET, lseek(fd, 0, SEEK_SET));
    off_t base = 0;
    off64_t base64 = 0;
    P("getdents", "d", NULL, NO, 201, NO, getdirentries(fd, buffer, 201, &base));
    P("lseek", "d", NULL, 0, NO, SEEK_SET, lseek(fd, 0, SEEK_SET));
    P("getdents", "d", NULL, NO, 202, NO, getdirentries64(fd, buffer, 202, &base64));
    P("lseek", "d", NULL, 0, NO, SEEK_SET, lseek(fd, 0, SEEK_SET));
    dir = fdopendir(fd);
    expect("posix", "fdopendir", "d", NULL, NO, NO, NO, fd);
    P("closedir", "d", NULL, NO, NO, NO, closedir(dir));
    struct dirent **list;
    struct dirent64 **list64;
    P("scandir", "d", NULL, NO, NO, NO, scandir("d", &list, NULL, alphasort));
    P("scandir", "d", NULL, NO, NO, NO, scandir64("d", &list64, NULL, alphasort64));
    P("scandir", "d", NULL, NO, NO, NO, scandirat(AT_FDCWD, "d", &list, NULL, alphasort));
    P("scandir", "d", NULL, NO, NO, NO, scandirat64(AT_FDCWD, "d", &list64, NULL, alphasort64));
    fd = P("open", "d", NULL, NO, NO, O_RDONLY | O_DIRECTORY, open("d", O_RDONLY | O_DIRECTORY));
    P("chdir", "d", NULL, NO, NO, NO, chdir("d"));
    P("stat", "d/x", NULL, NO, NO, NO, stat("x", &(struct stat){0}));
    P("chdir", "?", NULL, NO, NO, NO, chdir(".."));
    P("fchdir", "d", NULL, NO, NO, NO, fchdir(fd));
    P("access", "d/x", NULL, NO, NO, F_OK, access("x", F_OK));
    P("chdir", "?", NULL, NO, NO, NO, chdir(".."));
    closed(fd, "d");
}

void every_posix(void) {
    opens();
    data();
    attributes();
    names();
}
