/* Submits a write of 4096 bytes at offset 8192 and waits for its end, by the interface argv[1]:
 * aio, libaio or uring. argv[2]: file to write; argv[3]: file whose existence starts the write. */
#include "asynchronous.h"
#include <aio.h>
#include <libaio.h>
#include <liburing.h>

#define OFFSET 8192

static _Alignas(4096) char buffer[4096];

static long by_aio(int fd) {
    struct aiocb block = {
        .aio_fildes = fd, .aio_buf = buffer, .aio_offset = OFFSET, .aio_nbytes = sizeof buffer};
    const struct aiocb *list[] = {&block};
    CHECK(aio_write(&block) == 0);
    while (aio_error(&block) == EINPROGRESS)
        aio_suspend(list, 1, NULL);
    return aio_return(&block);
}

static long by_libaio(int fd) {
    io_context_t context = 0;
    struct iocb block, *list[] = {&block};
    struct io_event event;
    CHECK(io_setup(1, &context) == 0);
    io_prep_pwrite(&block, fd, buffer, sizeof buffer, OFFSET);
    CHECK(io_submit(context, 1, list) == 1);
    CHECK(io_getevents(context, 1, 1, &event, NULL) == 1);
    return (long)event.res;
}

static long by_uring(int fd) {
    struct io_uring ring;
    struct io_uring_cqe *completion;
    if (io_uring_queue_init(4, &ring, 0) != 0)
        exit(77);
    io_uring_prep_write(io_uring_get_sqe(&ring), fd, buffer, sizeof buffer, OFFSET);
    CHECK(io_uring_submit(&ring) == 1);
    CHECK(io_uring_wait_cqe(&ring, &completion) == 0);
    return completion->res;
}

int main(int count, char **words) {
    CHECK(count == 4);
    int fd = open(words[2], O_RDWR);
    CHECK(fd >= 0);
    while (access(words[3], F_OK) != 0)
        usleep(10000);
    long result = -1;
    if (strcmp(words[1], "aio") == 0)
        result = by_aio(fd);
    else if (strcmp(words[1], "libaio") == 0)
        result = by_libaio(fd);
    else
        result = by_uring(fd);
    CHECK(result == (long)sizeof buffer);
    return 0;
}
