/* A file-system client in thirty lines that records every request it serves.
 *
 *   cc client.c $(pkg-config --cflags --libs miot) -o client
 *   miot run -- ./client /tmp/some-file
 */
#include <errno.h>
#include <fcntl.h>
#include <miot.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static ssize_t client_write(int fd, uint64_t handle, const char *data, size_t length, off_t offset)
{
    struct miot_request request = miot_begin_enclosing(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE);
    ssize_t written = pwrite(fd, data, length, offset);
    struct miot_done done = { handle, (uint64_t)offset, length, written < 0 ? -errno : written, 0 };
    miot_end(&request, &done);
    return written;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    int fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) {
        fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    miot_note("checkpoint begins");
    uint64_t handle = miot_open(argv[1]);
    for (off_t block = 0; block < 8; block++)
        client_write(fd, handle, "12345678", 8, block * 8);
    client_write(-1, handle, "x", 1, 64); /* fails: the result is -EBADF */
    miot_close(handle);
    close(fd);
    printf("recording: %s\n", miot_active(MIOT_LAYER_CLIENT) ? "yes" : "no");
    return 0;
}
