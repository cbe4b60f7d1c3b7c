/* libaio: requests that are collected, abandoned or refused, on this thread and on others, and
 * by system calls without the library. */
#include "asynchronous.h"
#include <libaio.h>

#define SIZE 10000
#define MANY 6000
#define BATCHES 50
#define BATCH 8

static char buffer[4096];
static int fd, refusing;

static struct iocb *block(int fd, int op, long offset, size_t length) {
    struct iocb *request = malloc(sizeof *request);
    memset(request, 0, sizeof *request);
    request->aio_fildes = fd;
    request->aio_lio_opcode = op;
    request->u.c.buf = buffer;
    request->u.c.nbytes = length;
    request->u.c.offset = offset;
    request->data = (void *)offset;
    return request;
}

static io_context_t context(int requests) {
    io_context_t made = 0;
    CHECK(io_setup(requests, &made) == 0);
    return made;
}

static long collected(io_context_t from) {
    struct io_event event;
    CHECK(io_getevents(from, 1, 1, &event, NULL) == 1);
    free(event.obj);
    return (long)event.res;
}

static void simple(io_context_t context) {
    struct iocb *one = block(fd, IO_CMD_PWRITE, 10, 20);
    errno = 77;
    CHECK(io_submit(context, 1, &one) == 1);
    note("libaio_write", "data", 10, 20, collected(context));
    CHECK(errno == 77);
    one = block(fd, IO_CMD_PREAD, SIZE - 5, 50);
    CHECK(io_submit(context, 1, &one) == 1);
    note("libaio_read", "data", SIZE - 5, 50, collected(context));
    struct iovec vector[] = {{buffer, 11}, {buffer + 100, 22}};
    one = block(fd, IO_CMD_PWRITEV, 40, 2);
    one->u.c.buf = vector;
    CHECK(io_submit(context, 1, &one) == 1);
    note("libaio_write", "data", 40, 33, collected(context));
    one = block(fd, IO_CMD_PREADV, 41, 2);
    one->u.c.buf = vector;
    CHECK(io_submit(context, 1, &one) == 1);
    note("libaio_read", "data", 41, 33, collected(context));
    one = block(fd, IO_CMD_FDSYNC, 0, 0);
    one->u.c.buf = NULL;
    CHECK(io_submit(context, 1, &one) == 1);
    note("libaio_fsync", "data", NO, NO, collected(context));

    /* A request that fails in the kernel, and one that is not accepted. */
    one = block(fd, IO_CMD_PREAD, 60, 30);
    one->u.c.buf = (void *)8;
    CHECK(io_submit(context, 1, &one) == 1);
    note("libaio_read", "data", 60, 30, collected(context));
    struct iocb *three[] = {block(fd, IO_CMD_PREAD, 70, 7), block(refusing, IO_CMD_PREAD, 1, 2), block(fd, IO_CMD_PREAD, 72, 9)};
    CHECK(io_submit(context, 3, three) == 1);
    note("libaio_read", "data", 70, 7, collected(context));
    CHECK(io_submit(context, 2, three + 1) == -EBADF);
    note("libaio_read", "refusing", 1, 2, -EBADF);
    CHECK(io_cancel(context, three[2], &(struct io_event){0}) < 0);

    /* Addresses for which the kernel reports the error. */
    char *hole = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(munmap(hole + 4096, 4096) == 0);
    CHECK(io_submit(context, 1, (struct iocb **)(hole + 4096)) == -EFAULT);
    CHECK(io_submit(context, 1, (struct iocb **)-1L) == -EFAULT && io_submit(context, 1, NULL) == -EFAULT);
    struct iocb *cut = (struct iocb *)(hole + 4096 - 32);
    CHECK(io_submit(context, 1, &cut) == -EFAULT);
    struct iocb *half[] = {block(fd, IO_CMD_PREAD, 80, 3), (struct iocb *)16};
    CHECK(io_submit(context, 2, half) == 1);
    note("libaio_read", "data", 80, 3, collected(context));
    CHECK(io_submit(context, -1, three) == -EINVAL && io_submit((io_context_t)4096, 1, three + 1) == -EINVAL);
    note("libaio_read", "data", 80 + 1, 4, ({
             one = block(fd, IO_CMD_PREAD, 81, 4);
             CHECK(io_submit(context, 1, &one) == 1);
             struct io_event event;
             struct timespec second = {1, 0};
             CHECK(io_pgetevents(context, 1, 1, &event, &second, NULL) == 1);
             (long)event.res;
         }));
    note("libaio_read", "refusing", 1, 2, -EINVAL);
}

/* The same calls without the library. */
static void raw(void) {
    unsigned long made = 0;
    CHECK(syscall(SYS_io_setup, 8, &made) == 0);
    struct iocb *one = block(fd, IO_CMD_PWRITE, 400, 44);
    CHECK(syscall(SYS_io_submit, made, 1, &one) == 1);
    struct io_event event;
    CHECK(syscall(SYS_io_getevents, made, 1, 1, &event, NULL) == 1);
    note("libaio_write", "data", 400, 44, event.res);
    errno = 0;
    CHECK(syscall(SYS_io_submit, made, 1, NULL) == -1 && errno == EFAULT);
    one = block(fd, IO_CMD_PREAD, 401, 45);
    CHECK(syscall(SYS_io_submit, made, 1, &one) == 1);
    note("libaio_read", "data", 401, 45, 45);
    CHECK(syscall(SYS_io_destroy, made) == 0);
    /* Other system calls are unaffected. */
    CHECK(syscall(SYS_getpid) == getpid() && syscall(SYS_close, -1) == -1 && errno == EBADF);
    void *mapped = (void *)syscall(SYS_mmap, NULL, 4096L, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1L, 0L);
    CHECK(mapped != MAP_FAILED && ((char *)mapped)[5] == 0);
}

static void *collect(void *from) {
    for (int i = 0; i < BATCHES * BATCH;) {
        struct io_event events[5];
        int count = io_getevents(from, 1, 5, events, NULL);
        CHECK(count > 0);
        for (int at = 0; at < count; at++) {
            CHECK(events[at].res == 6);
            memset(events[at].obj, 0xee, sizeof(struct iocb));
            free(events[at].obj);
        }
        i += count;
    }
    return NULL;
}

static void elsewhere(void) {
    io_context_t shared = context(4096);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, collect, shared) == 0);
    for (int i = 0; i < BATCHES; i++) {
        struct iocb *list[BATCH];
        for (int at = 0; at < BATCH; at++) {
            list[at] = block(fd, IO_CMD_PREAD, 1000 + i * BATCH + at, 6);
            note("libaio_read", "data", 1000 + i * BATCH + at, 6, 6);
        }
        CHECK(io_submit(shared, BATCH, list) == BATCH);
    }
    pthread_join(thread, NULL);
    CHECK(io_destroy(shared) == 0);
}

/* Completed, and never collected. */
static void left(void) {
    io_context_t one = context(8);
    struct iocb *two[] = {block(fd, IO_CMD_PREAD, 500, 50), block(fd, IO_CMD_PREAD, SIZE - 1, 10)};
    CHECK(io_submit(one, 2, two) == 2 && io_destroy(one) == 0);
    note("libaio_read", "data", 500, 50, 50);
    note("libaio_read", "data", SIZE - 1, 10, 1);

    /* Taken from the ring without a call. */
    one = context(8);
    two[0] = block(fd, IO_CMD_PREAD, 501, 51);
    CHECK(io_submit(one, 1, two) == 1);
    ((unsigned *)one)[2] = ((unsigned *)one)[3];
    CHECK(io_destroy(one) == 0);
    note("libaio_read", "data", 501, 51, UNSEEN);

    one = context(8);
    two[0] = block(fd, IO_CMD_PREAD, 502, 52);
    CHECK(io_submit(one, 1, two) == 1);
    note("libaio_read", "data", 502, 52, 52);
}

static void many(void) {
    io_context_t one = context(MANY);
    int other = file("many", O_RDONLY, MANY);
    static struct iocb *list[MANY];
    for (int i = 0; i < MANY; i++)
        list[i] = block(other, IO_CMD_PREAD, i, 1);
    for (int i = 0; i < MANY;) {
        int count = io_submit(one, MANY - i, list + i);
        CHECK(count > 0);
        i += count;
    }
    for (int i = 0; i < MANY; i++)
        CHECK(collected(one) == 1);
    CHECK(io_destroy(one) == 0);
}

static void forked(io_context_t context) {
    struct iocb *one = block(fd, IO_CMD_PWRITE, 600, 60);
    CHECK(io_submit(context, 1, &one) == 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        CHECK(pread(fd, &byte, 1, 0) == 1);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    note("libaio_write", "data", 600, 60, collected(context));
}

int main(void) {
    fd = file("data", O_RDWR, SIZE);
    refusing = file("refusing", O_WRONLY, 10);
    int appending = file("appending", O_WRONLY | O_APPEND, 0);
    io_context_t one = context(8);
    simple(one);
    raw();
    elsewhere();
    many();
    forked(one);
    struct iocb *append = block(appending, IO_CMD_PWRITE, 999, 6);
    CHECK(io_submit(one, 1, &append) == 1);
    note("libaio_write", "appending", NO, 6, collected(one));
    left();
    return 0;
}
