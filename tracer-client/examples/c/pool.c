/* A file-system client with a pool of workers: callers queue requests, workers serve them and
 * notify the callers. Its "servers" are the files of a directory. See docs/hooks/instrument.md.
 *
 *   cc pool.c $(pkg-config --cflags --libs miot) -pthread -o pool
 *   miot run -- ./pool FOLDER CALLERS REQUESTS
 *
 * The lines that record requests with MIOT are marked with "MIOT:".
 */
#include <errno.h>
#include <fcntl.h>
#include <miot.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORKERS = 4, DEPTH = 8, BLOCK = 4096 };

/* MIOT: the debug log of this client. The mask selects the recorded messages, which cost some tens
 * of nanoseconds each. */
static uint64_t debug_mask = 1;
#define debug(mask, ...)                    \
    do {                                    \
        if (debug_mask & (mask))            \
            miot_debug(mask, __VA_ARGS__);  \
    } while (0)

struct file {
    int fd;
    uint64_t handle; /* MIOT: returned by miot_open */
};

struct request {
    uint8_t op;
    struct file *file;
    uint64_t offset;
    size_t length;
    char *buffer;
    ssize_t result;
    struct caller *caller;
    struct request *next;
    struct miot_request traced; /* MIOT: passed along with the request */
};

struct caller {
    struct file *file;
    unsigned requests, seed;
    pthread_mutex_t lock;
    pthread_cond_t completed;
    unsigned in_flight;
    struct request *free;
};

static struct request *first, **last = &first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static int stop;
static atomic_ullong count[2], bytes[2], failed;

static void submit(struct request *request)
{
    /* MIOT: the request begins when it arrives, before it waits in the queue. */
    request->traced = miot_submit(MIOT_LAYER_CLIENT, request->op);
    pthread_mutex_lock(&lock);
    request->next = NULL;
    *last = request;
    last = &request->next;
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
}

static void complete(struct request *request)
{
    /* MIOT: the request ends where its result is known, on any thread, before the caller is
     * notified. */
    struct miot_done done = { request->file->handle, request->offset, request->length, request->result, 0 };
    miot_complete(&request->traced, &done, NULL);

    int write = request->op == MIOT_CLIENT_WRITE;
    atomic_fetch_add(&count[write], 1);
    if (request->result < 0)
        atomic_fetch_add(&failed, 1);
    else
        atomic_fetch_add(&bytes[write], (unsigned long long)request->result);
    struct caller *caller = request->caller;
    pthread_mutex_lock(&caller->lock);
    request->next = caller->free;
    caller->free = request;
    caller->in_flight--;
    pthread_cond_signal(&caller->completed);
    pthread_mutex_unlock(&caller->lock);
}

static void *worker(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!first && !stop)
            pthread_cond_wait(&work, &lock);
        struct request *request = first;
        if (!request) {
            pthread_mutex_unlock(&lock);
            return NULL;
        }
        if (!(first = request->next))
            last = &first;
        pthread_mutex_unlock(&lock);

        debug(1, "serving %s of %zu bytes at %llu\n", request->op == MIOT_CLIENT_WRITE ? "write" : "read",
              request->length, (unsigned long long)request->offset);
        int fd = request->file->fd;
        ssize_t moved = request->op == MIOT_CLIENT_WRITE
                            ? pwrite(fd, request->buffer, request->length, (off_t)request->offset)
                            : pread(fd, request->buffer, request->length, (off_t)request->offset);
        request->result = moved < 0 ? -errno : moved;
        complete(request);
    }
}

static void *call(void *argument)
{
    static struct file broken = { -1, 0 };
    struct caller *caller = argument;
    for (unsigned i = 0; i < caller->requests; i++) {
        pthread_mutex_lock(&caller->lock);
        while (!caller->free)
            pthread_cond_wait(&caller->completed, &caller->lock);
        struct request *request = caller->free;
        caller->free = request->next;
        caller->in_flight++;
        pthread_mutex_unlock(&caller->lock);
        request->op = rand_r(&caller->seed) % 3 ? MIOT_CLIENT_WRITE : MIOT_CLIENT_READ;
        request->file = i % 100 == 99 ? &broken : caller->file;
        request->offset = (uint64_t)(rand_r(&caller->seed) % 64) * BLOCK;
        request->length = 1 + (size_t)rand_r(&caller->seed) % BLOCK;
        submit(request);
    }
    pthread_mutex_lock(&caller->lock);
    while (caller->in_flight)
        pthread_cond_wait(&caller->completed, &caller->lock);
    pthread_mutex_unlock(&caller->lock);
    return NULL;
}

int main(int argc, char **argv)
{
    int callers = argc == 4 ? atoi(argv[2]) : 0;
    if (callers < 1 || callers > 64) {
        fprintf(stderr, "usage: %s FOLDER CALLERS REQUESTS\n", argv[0]);
        return 2;
    }
    struct file *files = calloc((size_t)callers, sizeof *files);
    struct caller *all = calloc((size_t)callers, sizeof *all);
    pthread_t workers[WORKERS], threads[64];
    for (int i = 0; i < callers; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", argv[1], i);
        files[i].fd = open(path, O_RDWR | O_CREAT, 0600);
        if (files[i].fd < 0) {
            fprintf(stderr, "%s: %s\n", path, strerror(errno));
            return 1;
        }
        /* MIOT: a file's name is recorded once; requests contain its handle. */
        files[i].handle = miot_open(path);
    }
    for (int i = 0; i < WORKERS; i++)
        pthread_create(&workers[i], NULL, worker, NULL);
    for (int i = 0; i < callers; i++) {
        struct caller *caller = &all[i];
        caller->file = &files[i], caller->requests = (unsigned)atoi(argv[3]), caller->seed = (unsigned)i + 1;
        pthread_mutex_init(&caller->lock, NULL);
        pthread_cond_init(&caller->completed, NULL);
        for (int j = 0; j < DEPTH; j++) {
            struct request *request = calloc(1, sizeof *request);
            request->buffer = calloc(1, BLOCK);
            request->caller = caller, request->next = caller->free;
            caller->free = request;
        }
        pthread_create(&threads[i], NULL, call, caller);
    }
    for (int i = 0; i < callers; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_lock(&lock);
    stop = 1;
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    for (int i = 0; i < callers; i++)
        miot_close(files[i].handle);
    printf("read %llu %llu\nwrite %llu %llu\nfailed %llu\n", count[0], bytes[0], count[1], bytes[1], failed);
    return 0;
}
