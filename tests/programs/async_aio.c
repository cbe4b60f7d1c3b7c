/* POSIX asynchronous I/O, completed in every way that a program can use. */
#include "asynchronous.h"
#include <aio.h>
#include <semaphore.h>

#define SIZE 1000
#define THREADS 4
#define EACH 50
#define MANY 6000

static char buffer[4096];
static int fd, refusing;

static struct aiocb block(int fd, long offset, size_t length) {
    return (struct aiocb){.aio_fildes = fd, .aio_buf = buffer, .aio_offset = offset, .aio_nbytes = length};
}

static int done(struct aiocb *request) {
    int error;
    while ((error = aio_error(request)) == EINPROGRESS)
        usleep(200);
    return error;
}

static void simple(void) {
    struct aiocb request = block(fd, 10, 20);
    CHECK(aio_write(&request) == 0 && done(&request) == 0);
    errno = 77;
    note("aio_write", "data", 10, 20, aio_return(&request));
    CHECK(errno == 77 && aio_error(&request) == 0 && aio_return(&request) == 20);

    request = block(fd, SIZE - 7, 100);
    CHECK(aio_read(&request) == 0 && done(&request) == 0);
    note("aio_read", "data", SIZE - 7, 100, aio_return(&request));

    /* Opened for writing only. */
    request = block(refusing, 0, 5);
    CHECK(aio_read(&request) == 0 && done(&request) == EBADF && aio_return(&request) == -1);
    note("aio_read", "refusing", 0, 5, -EBADF);

    request = block(fd, 0, 0);
    CHECK(aio_fsync(O_SYNC, &request) == 0 && done(&request) == 0 && aio_return(&request) == 0);
    note("aio_fsync", "data", NO, NO, 0);
    errno = 0;
    CHECK(aio_fsync(12345, &request) == -1 && errno == EINVAL);
    note("aio_fsync", "data", NO, NO, -EINVAL);
}

/* Completed, and never collected. */
static void seen(void) {
    static struct aiocb request;
    request = block(fd, 30, 40);
    CHECK(aio_read(&request) == 0 && done(&request) == 0);
    note("aio_read", "data", 30, 40, 40);

    static struct aiocb two[2];
    two[0] = block(fd, 31, 41), two[1] = block(fd, 32, 42);
    const struct aiocb *list[] = {&two[0], NULL, &two[1]};
    CHECK(aio_read(&two[0]) == 0 && aio_write(&two[1]) == 0);
    while (aio_error(&two[0]) == EINPROGRESS)
        CHECK(aio_suspend(list, 3, NULL) == 0);
    const struct aiocb *rest[] = {&two[1]};
    CHECK(aio_suspend(rest, 1, NULL) == 0);
    note("aio_read", "data", 31, 41, 41);
    note("aio_write", "data", 32, 42, 42);
}

static void lists(void) {
    struct aiocb a = block(fd, 50, 60), b = block(fd, 51, 61), nothing = block(fd, 52, 62), bad = block(refusing, 3, 4);
    a.aio_lio_opcode = LIO_READ, b.aio_lio_opcode = LIO_WRITE;
    nothing.aio_lio_opcode = LIO_NOP, bad.aio_lio_opcode = LIO_READ;
    struct aiocb *list[] = {&a, NULL, &b, &nothing};
    CHECK(lio_listio(LIO_WAIT, list, 4, NULL) == 0);
    note("aio_read", "data", 50, 60, 60);
    note("aio_write", "data", 51, 61, 61);
    struct aiocb *failing[] = {&a, &bad};
    CHECK(lio_listio(LIO_WAIT, failing, 2, NULL) == -1 && errno == EIO);
    note("aio_read", "data", 50, 60, 60);
    note("aio_read", "refusing", 3, 4, -EBADF);
    CHECK(lio_listio(LIO_NOWAIT, list, 4, NULL) == 0 && done(&a) == 0 && done(&b) == 0);
    note("aio_read", "data", 50, 60, aio_return(&a));
    note("aio_write", "data", 51, 61, aio_return(&b));
}

static sem_t told;
static struct aiocb told_of;

static void by_signal(int number, siginfo_t *info, void *context) {
    struct aiocb *request = info->si_value.sival_ptr;
    if (aio_error(request) == 0 && aio_return(request) == 70)
        sem_post(&told);
}

static void by_thread(union sigval value) { by_signal(0, &(siginfo_t){.si_value = value}, NULL); }

static void notified(void) {
    sem_init(&told, 0, 0);
    struct sigaction action = {.sa_sigaction = by_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int thread = 0; thread < 2; thread++) {
        told_of = block(fd, 80 + thread, 70);
        told_of.aio_sigevent.sigev_notify = thread ? SIGEV_THREAD : SIGEV_SIGNAL;
        if (thread)
            told_of.aio_sigevent.sigev_notify_function = by_thread;
        else
            told_of.aio_sigevent.sigev_signo = SIGUSR1;
        told_of.aio_sigevent.sigev_value.sival_ptr = &told_of;
        CHECK(aio_write(&told_of) == 0);
        while (sem_wait(&told))
            CHECK(errno == EINTR);
        note("aio_write", "data", 80 + thread, 70, 70);
    }
}

/* Submitted in one thread, collected and freed in another. */
static struct aiocb *ways[THREADS * EACH];
static sem_t there;
static int next;

static void *collect(void *unused) {
    for (int i = 0; i < EACH; i++) {
        while (sem_wait(&there))
            CHECK(errno == EINTR);
        struct aiocb *request = ways[__atomic_fetch_add(&next, 1, __ATOMIC_SEQ_CST)];
        CHECK(done(request) == 0 && aio_return(request) == 1);
        munmap(request, 4096);
    }
    return NULL;
}

static void elsewhere(void) {
    pthread_t threads[THREADS];
    sem_init(&there, 0, 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, collect, NULL) == 0);
    for (int i = 0; i < THREADS * EACH; i++) {
        ways[i] = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *ways[i] = block(fd, 100 + i, 1);
        CHECK(aio_read(ways[i]) == 0);
        sem_post(&there);
        note("aio_read", "data", 100 + i, 1, 1);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void forked(void) {
    struct aiocb request = block(fd, 90, 9);
    CHECK(aio_write(&request) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        /* The child has no threads of libc. The state of the block is the parent's. aio_error would
         * take a lock of libc, which a thread of the parent may have held during the fork. */
        char byte;
        CHECK(pread(fd, &byte, 1, 0) == 1);
        aio_return(&request);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0 && done(&request) == 0);
    note("aio_write", "data", 90, 9, aio_return(&request));
}

/* It is not known which of them fit the table. The trace must have each once. */
static void many(void) {
    static struct aiocb requests[MANY];
    int other = file("many", O_RDONLY, MANY);
    for (int i = 0; i < MANY; i++) {
        requests[i] = block(other, i, 1);
        CHECK(aio_read(&requests[i]) == 0);
    }
    for (int i = 0; i < MANY; i++)
        CHECK(done(&requests[i]) == 0 && aio_return(&requests[i]) == 1);
}

static void never(void) {
    struct aiocb *request = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *request = block(fd, 200, 3);
    CHECK(aio_read(request) == 0);
    note("aio_read", "data", 200, 3, UNSEEN);
    /* The memory must not be freed while a request may be in flight. */
    usleep(200000);
    *request = block(fd, 201, 4);
    CHECK(aio_read(request) == 0);
    note("aio_read", "data", 201, 4, UNSEEN);
    usleep(200000);
    munmap(request, 4096);
}

int main(void) {
    fd = file("data", O_RDWR, SIZE);
    refusing = file("refusing", O_WRONLY, 10);
    int appending = file("appending", O_WRONLY | O_APPEND, 0);
    simple();
    seen();
    lists();
    notified();
    elsewhere();
    forked();
    many();
    struct aiocb request = block(appending, 999, 6);
    CHECK(aio_write(&request) == 0 && done(&request) == 0);
    note("aio_write", "appending", NO, 6, aio_return(&request));
    request = block(fd, 300, 2);
    CHECK(aio_read(&request) == 0);
    while (aio_cancel(fd, &request) == AIO_NOTCANCELED)
        usleep(200);
    note("aio_read", "data", 300, 2, aio_error(&request) ? -aio_error(&request) : aio_return(&request));
    never();
    return 0;
}
