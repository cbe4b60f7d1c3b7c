/* A stub of OrangeFS's client library for tests and benchmarks: the same symbols and signatures,
 * one flat directory, and the data of each object in a file. Requests are posted to a queue and
 * served by a separate thread. As in the original, blocking calls use non-blocking ones through
 * the dynamic symbol table, and so does the log.
 *
 *   PVFS_STANDIN_DIR    folder of the files
 *   PVFS_STANDIN_MASK   mask of the debug log (PVFS_STANDIN_LOG: its file), 0: none
 *   PVFS_STANDIN_HANGS  a file: while it exists, a read or write at offset 8192 is not served
 *   PVFS_STANDIN_LINES  log lines of a read or write under the masks 1 << 26 (io) and all others,
 *                       "32,290"
 *   PVFS_STANDIN_DELAY  time of the servers for a read or write: nanoseconds, and nanoseconds per
 *                       64 KiB, "440000,560000" (default: as fast as the file) */
#define _GNU_SOURCE
#include "pvfs2.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define EINVAL_ (PVFS_ERROR_BIT | 15)
#define ENOENT_ (PVFS_ERROR_BIT | 2)
#define EEXIST_ (PVFS_ERROR_BIT | 11)
#define EIO_ (PVFS_ERROR_BIT | 4)
#define CLIENT_DEBUG (1ull << 13)
#define IO_DEBUG (1ull << 26)
#define FS 9
#define ROOT 1048576

struct PINT_Request {
    PVFS_size size;
};
static struct PINT_Request byte = { 1 };
PVFS_Request PVFS_BYTE = &byte;

int PVFS_Request_contiguous(int32_t count, PVFS_Request old, PVFS_Request *new)
{
    *new = malloc(sizeof **new);
    (*new)->size = count * old->size;
    return 0;
}

int PVFS_Request_free(PVFS_Request *request)
{
    free(*request);
    *request = NULL;
    return 0;
}

int PVFS_Request_size(PVFS_Request request, PVFS_size *size)
{
    *size = request->size;
    return 0;
}

PVFS_error PVFS_get_errno_mapping(PVFS_error error)
{
    switch (error & 127) {
    case 2:
        return ENOENT;
    case 4:
        return EIO;
    case 11:
        return EEXIST;
    case 15:
        return EINVAL;
    }
    return error;
}

/* The log. */
uint64_t gossip_debug_mask;
int gossip_debug_on;
static FILE *log_file;
static unsigned io_lines = 32, all_lines = 290;

#define LOG_LINE log_line
#include "log_line.h"

__attribute__((format(printf, 3, 0))) int __gossip_debug_va(uint64_t mask, char prefix, const char *format, va_list list)
{
    (void)mask;
    return log_file ? log_line(log_file, prefix == '?' ? 'D' : prefix, format, list) : 0;
}

__attribute__((format(printf, 3, 4))) int __gossip_debug(uint64_t mask, char prefix, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int returned = __gossip_debug_va(mask, prefix, format, list);
    va_end(list);
    return returned;
}

#define gossip_debug(mask, ...)                             \
    do {                                                    \
        if (gossip_debug_on && (gossip_debug_mask & (mask))) \
            __gossip_debug(mask, '?', __VA_ARGS__);         \
    } while (0)

/* Objects: the directory, and up to this number of files in it. */
#define FILES 4096
static struct {
    char name[256];
    int fd;
} files[FILES];
static pthread_mutex_t names = PTHREAD_MUTEX_INITIALIZER;

static int fd_of(PVFS_object_ref ref)
{
    uint64_t at = ref.handle - ROOT - 1;
    return ref.fs_id == FS && at < FILES && files[at].name[0] ? files[at].fd : -1;
}

static PVFS_object_ref find(const char *name)
{
    while (*name == '/')
        name++;
    for (unsigned at = 0; at < FILES; at++)
        if (*name && strcmp(files[at].name, name) == 0)
            return (PVFS_object_ref){ ROOT + 1 + at, FS, 0 };
    return (PVFS_object_ref){ *name ? 0 : ROOT, FS, 0 };
}

static PVFS_error make(const char *name, PVFS_object_ref *ref)
{
    PVFS_error error = -EIO_;
    pthread_mutex_lock(&names);
    if (find(name).handle) {
        error = -EEXIST_;
    } else {
        for (unsigned at = 0; at < FILES && error == -EIO_; at++) {
            char path[4096];
            if (files[at].name[0])
                continue;
            snprintf(path, sizeof path, "%s/%u", getenv("PVFS_STANDIN_DIR"), ROOT + 1 + at);
            files[at].fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (files[at].fd < 0)
                break;
            snprintf(files[at].name, sizeof files[at].name, "%s", name);
            *ref = (PVFS_object_ref){ ROOT + 1 + at, FS, 0 };
            error = 0;
        }
    }
    pthread_mutex_unlock(&names);
    return error;
}

/* Requests, each at the index given by its id modulo their number. */
enum what { IO, LOOKUP, MAKE, REMOVE, RENAME, READDIR, TRUNCATE, FLUSH, NOTHING };
struct request {
    enum { FREE, QUEUED, DONE } state;
    PVFS_sys_op_id id;
    enum what what;
    PVFS_object_ref ref;
    char name[256], second[256];
    uint64_t offset, length;
    char *buffer;
    int write, error;
    void *resp, *user_ptr;
    struct request *next;
};
#define REQUESTS 512
static struct request requests[REQUESTS], *first, **last = &first;
static PVFS_sys_op_id next_id = 1000;
static pthread_mutex_t queue = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;

/* Time of the servers. The thread sleeps for most of it, so that other processes run, as a client
 * sleeps that waits for the network. It spins at the end, because a sleep may end late. */
static uint64_t delay, delay_per_64_kib;

static uint64_t monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void wait_until(uint64_t until)
{
    enum { SPIN_NS = 100000 };
    uint64_t wake = until - SPIN_NS, now = monotonic();
    struct timespec time = { (time_t)(wake / 1000000000), (long)(wake % 1000000000) };
    if (now < wake)
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
    while (monotonic() < until)
        ;
}

static PVFS_error serve(struct request *r)
{
    PVFS_error error = 0;
    switch (r->what) {
    case IO: {
        int fd = fd_of(r->ref);
        gossip_debug(CLIENT_DEBUG, "serving %s of %llu bytes at %llu\n", r->write ? "write" : "read",
                     (unsigned long long)r->length, (unsigned long long)r->offset);
        for (unsigned i = 2; i < io_lines; i++)
            gossip_debug(IO_DEBUG, "  datafile %u of handle %llu: state %s, %lld of %lld bytes\n", i,
                         (unsigned long long)r->ref.handle, "io_datafile_complete_operations", (long long)i * 100,
                         (long long)r->length);
        for (unsigned i = io_lines + 3; i < all_lines; i++)
            gossip_debug(1ull << 40, "[SM Entering]: (%p) %s:%s (status: %d)\n", (void *)r, "pvfs2_client_io_sm",
                         "io_datafile_post_msgpairs", 0);
        const char *hangs = getenv("PVFS_STANDIN_HANGS");
        while (hangs && r->offset == 8192 && access(hangs, F_OK) == 0)
            usleep(1000);
        uint64_t total = delay + r->length * delay_per_64_kib / 65536, begun = total ? monotonic() : 0;
        ssize_t moved = fd < 0 ? -1 : r->write ? pwrite(fd, r->buffer, r->length, (off_t)r->offset)
                                               : pread(fd, r->buffer, r->length, (off_t)r->offset);
        if (moved < 0)
            return fd < 0 ? -EINVAL_ : -EIO_;
        if (total)
            wait_until(begun + total);
        ((PVFS_sysresp_io *)r->resp)->total_completed = moved;
        return 0;
    }
    case LOOKUP:
        pthread_mutex_lock(&names);
        ((PVFS_sysresp_lookup *)r->resp)->ref = find(r->name);
        pthread_mutex_unlock(&names);
        return ((PVFS_sysresp_lookup *)r->resp)->ref.handle ? 0 : -ENOENT_;
    case MAKE:
        return make(r->name, r->resp);
    case REMOVE:
    case RENAME:
        pthread_mutex_lock(&names);
        PVFS_object_ref ref = find(r->name);
        if (ref.handle <= ROOT) {
            error = -ENOENT_;
        } else if (r->what == RENAME) {
            strcpy(files[ref.handle - ROOT - 1].name, r->second);
        } else {
            files[ref.handle - ROOT - 1].name[0] = 0;
            close(files[ref.handle - ROOT - 1].fd);
        }
        pthread_mutex_unlock(&names);
        return error;
    case READDIR:
        ((PVFS_sysresp_readdir *)r->resp)->pvfs_dirent_outcount = 0;
        for (unsigned at = 0; at < FILES; at++)
            ((PVFS_sysresp_readdir *)r->resp)->pvfs_dirent_outcount += files[at].name[0] != 0;
        return 0;
    case TRUNCATE:
        return ftruncate(fd_of(r->ref), (off_t)r->length) == 0 ? 0 : -EINVAL_;
    case FLUSH:
        return fsync(fd_of(r->ref)) == 0 ? 0 : -EINVAL_;
    case NOTHING:
        return r->ref.handle == 0 || r->ref.handle == ROOT || fd_of(r->ref) >= 0 ? 0 : -ENOENT_;
    }
    return -EINVAL_;
}

static void *worker(void *unused)
{
    (void)unused;
    if (delay || delay_per_64_kib)
        prctl(PR_SET_TIMERSLACK, 1ul);
    pthread_mutex_lock(&queue);
    for (;;) {
        while (!first)
            pthread_cond_wait(&work, &queue);
        struct request *r = first;
        if (!(first = r->next))
            last = &first;
        pthread_mutex_unlock(&queue);
        int error = serve(r);
        gossip_debug(CLIENT_DEBUG, "request %lld completed: %d\n", (long long)r->id, error);
        pthread_mutex_lock(&queue);
        r->error = error;
        r->state = DONE;
        pthread_cond_broadcast(&done);
    }
    return NULL;
}

int PVFS_sys_initialize(uint64_t mask)
{
    const char *text = getenv("PVFS_STANDIN_MASK"), *log = getenv("PVFS_STANDIN_LOG"), *lines = getenv("PVFS_STANDIN_LINES");
    const char *slow = getenv("PVFS_STANDIN_DELAY");
    pthread_t thread;
    gossip_debug_mask = text ? strtoull(text, NULL, 0) : mask;
    gossip_debug_on = gossip_debug_mask != 0;
    log_file = log ? fopen(log, "w") : stderr;
    if (lines)
        sscanf(lines, "%u,%u", &io_lines, &all_lines);
    if (slow)
        sscanf(slow, "%" SCNu64 ",%" SCNu64, &delay, &delay_per_64_kib);
    return pthread_create(&thread, NULL, worker, NULL) == 0 ? 0 : -EIO_;
}

int PVFS_sys_finalize(void)
{
    return 0;
}

static PVFS_error queued(const struct request *asked, void *resp, PVFS_sys_op_id *op_id, void *user_ptr)
{
    gossip_debug(CLIENT_DEBUG, "%s: kind %d, handle %llu, %s\n", __func__, asked->what,
                 (unsigned long long)asked->ref.handle, asked->name);
    if (asked->what == IO && asked->length == 0) {
        ((PVFS_sysresp_io *)resp)->total_completed = 0;
        return 1;
    }
    /* The original completes some requests at once as well. */
    if (asked->what == NOTHING && asked->ref.handle == ROOT) {
        *op_id = -1;
        return 0;
    }
    pthread_mutex_lock(&queue);
    struct request *r;
    while ((r = &requests[next_id % REQUESTS])->state != FREE)
        next_id++;
    *r = *asked;
    *op_id = r->id = next_id++;
    r->state = QUEUED;
    r->resp = resp, r->user_ptr = user_ptr, r->next = NULL;
    *last = r;
    last = &r->next;
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&queue);
    return 0;
}

int PVFS_sys_wait(PVFS_sys_op_id op_id, const char *what, int *error)
{
    (void)what;
    pthread_mutex_lock(&queue);
    struct request *r = &requests[op_id % REQUESTS];
    while (r->state != DONE || r->id != op_id)
        pthread_cond_wait(&done, &queue);
    *error = r->error;
    r->state = FREE;
    pthread_mutex_unlock(&queue);
    return 0;
}

static int test(PVFS_sys_op_id *ids, int *count, void **user_ptrs, int *errors, int timeout_ms, int any)
{
    int wanted = *count, found = 0;
    PVFS_sys_op_id asked[wanted];
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000, until.tv_nsec += timeout_ms % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    memcpy(asked, ids, sizeof asked);
    pthread_mutex_lock(&queue);
    for (int late = 0; !found && !late;) {
        for (int i = 0; i < REQUESTS && found < wanted; i++) {
            struct request *r = &requests[i];
            int is = any;
            for (int j = 0; j < wanted && !is; j++)
                is = asked[j] == r->id;
            if (r->state == DONE && is) {
                ids[found] = r->id, errors[found] = r->error;
                if (user_ptrs)
                    user_ptrs[found] = r->user_ptr;
                r->state = FREE;
                found++;
            }
        }
        if (!found)
            late = pthread_cond_timedwait(&done, &queue, &until) == ETIMEDOUT;
    }
    pthread_mutex_unlock(&queue);
    *count = found;
    return 0;
}

int PVFS_sys_testany(PVFS_sys_op_id *ids, int *count, void **user_ptrs, int *errors, int timeout_ms)
{
    return test(ids, count, user_ptrs, errors, timeout_ms, 1);
}

int PVFS_sys_testsome(PVFS_sys_op_id *ids, int *count, void **user_ptrs, int *errors, int timeout_ms)
{
    return test(ids, count, user_ptrs, errors, timeout_ms, 0);
}

/* Waits for a posted request and returns the result of the blocking call. */
static PVFS_error waited(PVFS_error posted, PVFS_sys_op_id id, const char *what)
{
    int error = posted < 0 ? posted : 0;
    if (posted == 0 && id != -1)
        PVFS_sys_wait(id, what, &error);
    return error;
}

static void name(struct request *r, char *at, const char *text)
{
    (void)r;
    snprintf(at, 256, "%s", text);
}

#define LIST(...) __VA_ARGS__
#define BOTH(call, PARAMETERS, ARGUMENTS, resp_p, ...)                                     \
    PVFS_error PVFS_isys_##call(PARAMETERS, PVFS_POSTED)                                   \
    {                                                                                      \
        (void)hints, (void)credential;                                                     \
        struct request asked = { __VA_ARGS__ };                                            \
        struct request *r = &asked;                                                        \
        NAMES_##call;                                                                      \
        return queued(r, (void *)(resp_p), op_id, user_ptr);                               \
    }                                                                                      \
    PVFS_error PVFS_sys_##call(PARAMETERS, PVFS_HINTS)                                     \
    {                                                                                      \
        PVFS_sys_op_id id = 0;                                                             \
        PVFS_error posted = PVFS_isys_##call(ARGUMENTS, &id, hints, NULL);                 \
        return waited(posted, id, #call);                                                  \
    }

#define NAMES_io (void)file_req
BOTH(io,
     LIST(PVFS_REF, PVFS_Request file_req, int64_t file_req_offset, void *buffer, PVFS_Request mem_req, PVFS_CREDENTIAL,
          PVFS_sysresp_io *resp, enum PVFS_io_type type),
     LIST(ref, file_req, file_req_offset, buffer, mem_req, credential, resp, type), resp, .what = IO, .ref = ref,
     .offset = (uint64_t)file_req_offset, .length = (uint64_t)mem_req->size, .buffer = buffer,
     .write = type == PVFS_IO_WRITE)
#define NAMES_ref_lookup name(r, r->name, entry), (void)fs_id, (void)follow_link
BOTH(ref_lookup,
     LIST(PVFS_fs_id fs_id, char *entry, PVFS_REF, PVFS_CREDENTIAL, PVFS_sysresp_lookup *resp, int32_t follow_link),
     LIST(fs_id, entry, ref, credential, resp, follow_link), resp, .what = LOOKUP, .ref = ref)
#define NAMES_getattr (void)mask
BOTH(getattr, LIST(PVFS_REF, uint32_t mask, PVFS_CREDENTIAL, PVFS_sysresp_getattr *resp),
     LIST(ref, mask, credential, resp), resp, .what = NOTHING, .ref = ref)
#define NAMES_setattr (void)attr
BOTH(setattr, LIST(PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL), LIST(ref, attr, credential), NULL, .what = NOTHING,
     .ref = ref)
#define NAMES_mkdir name(r, r->name, entry), (void)attr
BOTH(mkdir, LIST(char *entry, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sysresp_mkdir *resp),
     LIST(entry, ref, attr, credential, resp), &resp->ref, .what = MAKE, .ref = ref)
#define NAMES_symlink name(r, r->name, entry), (void)attr, (void)target
BOTH(symlink, LIST(char *entry, PVFS_REF, char *target, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sysresp_symlink *resp),
     LIST(entry, ref, target, attr, credential, resp), &resp->ref, .what = MAKE, .ref = ref)
#define NAMES_remove name(r, r->name, entry)
BOTH(remove, LIST(char *entry, PVFS_REF, PVFS_CREDENTIAL), LIST(entry, ref, credential), NULL, .what = REMOVE, .ref = ref)
#define NAMES_rename name(r, r->name, entry), name(r, r->second, other), (void)new_ref
BOTH(rename, LIST(char *entry, PVFS_REF, char *other, PVFS_object_ref new_ref, PVFS_CREDENTIAL),
     LIST(entry, ref, other, new_ref, credential), NULL, .what = RENAME, .ref = ref)
#define NAMES_readdir (void)token, (void)count
BOTH(readdir, LIST(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL, PVFS_sysresp_readdir *resp),
     LIST(ref, token, count, credential, resp), resp, .what = READDIR, .ref = ref)
#define NAMES_readdirplus (void)token, (void)count, (void)mask
BOTH(readdirplus,
     LIST(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL, uint32_t mask, PVFS_sysresp_readdirplus *resp),
     LIST(ref, token, count, credential, mask, resp), &resp->readdir, .what = READDIR, .ref = ref)
#define NAMES_truncate (void)0
BOTH(truncate, LIST(PVFS_REF, PVFS_size size, PVFS_CREDENTIAL), LIST(ref, size, credential), NULL, .what = TRUNCATE,
     .ref = ref, .length = (uint64_t)size)
#define NAMES_flush (void)0
BOTH(flush, LIST(PVFS_REF, PVFS_CREDENTIAL), LIST(ref, credential), NULL, .what = FLUSH, .ref = ref)
#define NAMES_statfs (void)fs_id
BOTH(statfs, LIST(PVFS_fs_id fs_id, PVFS_CREDENTIAL, PVFS_sysresp_statfs *resp), LIST(fs_id, credential, resp), resp,
     .what = NOTHING)
#define NAMES_seteattr (void)key, (void)value, (void)flags
BOTH(seteattr, LIST(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_ds_keyval *value, int32_t flags),
     LIST(ref, credential, key, value, flags), NULL, .what = NOTHING, .ref = ref)
#define NAMES_deleattr (void)key
BOTH(deleattr, LIST(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key), LIST(ref, credential, key), NULL, .what = NOTHING,
     .ref = ref)

PVFS_error PVFS_sys_lookup(PVFS_fs_id fs_id, char *entry, PVFS_CREDENTIAL, PVFS_sysresp_lookup *resp, int32_t follow_link,
                           PVFS_HINTS)
{
    PVFS_object_ref root = { ROOT, FS, 0 };
    PVFS_sys_op_id id = 0;
    PVFS_error posted = PVFS_isys_ref_lookup(fs_id, entry, root, credential, resp, follow_link, &id, hints, NULL);
    return waited(posted, id, "lookup");
}

PVFS_error PVFS_isys_create(char *entry, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sys_dist *dist,
                            PVFS_sys_layout *layout, PVFS_sysresp_create *resp, PVFS_POSTED)
{
    (void)dist, (void)layout;
    return PVFS_isys_mkdir(entry, ref, attr, credential, (PVFS_sysresp_mkdir *)resp, op_id, hints, user_ptr);
}

PVFS_error PVFS_sys_create(char *entry, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sys_dist *dist,
                           PVFS_sysresp_create *resp, PVFS_sys_layout *layout, PVFS_HINTS)
{
    PVFS_sys_op_id id = 0;
    PVFS_error posted = PVFS_isys_create(entry, ref, attr, credential, dist, layout, resp, &id, hints, NULL);
    return waited(posted, id, "create");
}
