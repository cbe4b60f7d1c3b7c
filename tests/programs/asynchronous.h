/* Log of a program's asynchronous requests and their observed results. The trace must have the
 * same. */
#ifndef ASYNCHRONOUS_H
#define ASYNCHRONOUS_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Result of a request whose completion was not observed. */
#define UNSEEN (-EINPROGRESS)
/* No offset or length; a length that is not compared. */
#define NO (-1L)

/* Ends the program if a precondition does not hold. */
#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s: errno %d\n", __FILE__, __LINE__, #what, errno);                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* One request: operation, file, offset, length, result. */
static void note(const char *op, const char *file, long offset, long length, long result) {
    printf("%s %s %ld %ld %ld\n", op, file, offset, length, result);
}

/* Creates a file of this size. */
static int file(const char *name, int flags, size_t bytes) {
    int fd = open(name, O_CREAT | O_TRUNC | O_RDWR, 0600);
    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0 && close(fd) == 0);
    fd = open(name, flags);
    CHECK(fd >= 0);
    return fd;
}

#endif
