/* libmiot_pvfs.so: preloaded, it records the requests of programs that use OrangeFS's client
 * library. Neither the program nor the library is changed.
 *
 *   LD_PRELOAD=libmiot_pvfs.so pvfs2-cp ...
 *
 * A blocking call (PVFS_sys_*) is one request. A non-blocking call (PVFS_isys_*) is one request
 * as well: it is stored in a table by its id, and ends when PVFS_sys_testany, _testsome or _wait
 * reports its completion, on any thread. The library implements its blocking calls with
 * non-blocking ones, through the same symbols: calls that the library makes within a recorded
 * call are passed on.
 *
 * __gossip_debug, the function behind every gossip_debug() that the debug mask enables, records
 * the message without formatting it. MIOT_PVFS_DEBUG selects the destination of messages:
 *
 *   record   (default) the trace; a message that cannot be recorded goes to the library's own log
 *   both     the trace and the log
 *   pass     the log only
 *
 * docs/hooks/pvfs.md describes the contents of the trace. */

#define _GNU_SOURCE
#include "pvfs2.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <miot.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* The function behind a hook. */
#define REAL(name)                                                       \
    static __typeof__(&name) real;                                       \
    if (__builtin_expect(!real, 0))                                      \
        *(void **)&real = dlsym(RTLD_NEXT, #name)

/* Set while a recorded call of the library runs. Its inner calls are not recorded. */
static __thread int inside __attribute__((tls_model("initial-exec")));

/* A spin lock that is held for a few instructions. A thread that does not get it in time
 * continues without it: a child that was forked while another thread held the lock must not
 * hang. */
static atomic_flag lock = ATOMIC_FLAG_INIT;

/* Returns whether the lock was acquired. */
static int try_lock(void)
{
    for (int i = 0; i < 10000; i++) {
        if (!atomic_flag_test_and_set_explicit(&lock, memory_order_acquire))
            return 1;
        if (i > 100)
            sched_yield();
    }
    return 0;
}

static void unlock(void)
{
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* Objects and their handles in the trace. A new object replaces the one in its slot; the
 * replaced object is named again at its next request. */
#define OBJECTS 4096
static struct {
    uint64_t handle, traced;
    PVFS_fs_id fs_id;
} objects[OBJECTS];

/* A request that was posted and whose completion was not observed yet. */
struct posted_request {
    PVFS_sys_op_id id;
    struct miot_request request;
    struct miot_done done;
    uint32_t uid;
    const PVFS_object_ref *created;
    const void *count;
    char path[300], second[300], name[260];
};

/* Table of posted requests. The library returns at most 256 completions at a time. For a program
 * with more posted requests than the capacity see post_returned. */
#define POSTED 1024
#define MAX_PROBES 64
static struct posted_request posted[POSTED];

/* Completions of requests whose post has not returned yet on its own thread. Kept only while a
 * post is in progress. */
#define EARLY 64
static struct {
    PVFS_sys_op_id id;
    int error;
} early[EARLY];
static int posting;

static uint32_t own_uid;
static enum { RECORD = 1, PASS = 2 } debug_destination = RECORD;

/* Clears all tables, in a forked child. */
static void clear_tables(void)
{
    memset(objects, 0, sizeof objects);
    memset(posted, 0, sizeof posted);
    memset(early, 0, sizeof early);
    posting = 0;
    unlock();
}

__attribute__((constructor)) static void set_up(void)
{
    const char *debug = getenv("MIOT_PVFS_DEBUG");
    if (debug && strcmp(debug, "both") == 0)
        debug_destination = RECORD | PASS;
    else if (debug && strcmp(debug, "pass") == 0)
        debug_destination = PASS;
    else if (debug && *debug && strcmp(debug, "record") != 0)
        fprintf(stderr, "libmiot_pvfs.so: MIOT_PVFS_DEBUG=%s: expected record, both or pass; using record\n", debug);
    own_uid = geteuid();
    pthread_atfork(NULL, NULL, clear_tables);
}

/* Arguments of a request; zero if it has none. */
struct request_args {
    uint8_t op;
    PVFS_object_ref ref; /* the object, or the directory of `name` */
    const char *name, *second;
    PVFS_object_ref second_ref; /* directory of `second` */
    const char *target; /* of a symbolic link: recorded as first path, the link's name as second */
    int text_second; /* `second` is not a name in a directory */
    uint64_t offset, length;
    uint64_t handle; /* of the object in the trace, if it is known before the call */
    const PVFS_credential *credential;
    const PVFS_object_ref *created; /* object that the request finds or creates */
    const void *count; /* its result: an int64_t of bytes for io, else a uint32_t */
};

/* Converts an error of the library to -errno. */
static int64_t result_of(PVFS_error error)
{
    static __typeof__(&PVFS_get_errno_mapping) mapping;
    PVFS_error positive = error < 0 ? -error : error;
    if (error >= 0)
        return 0;
    if (!mapping)
        *(void **)&mapping = dlsym(RTLD_DEFAULT, "PVFS_get_errno_mapping");
    if ((positive & PVFS_ERROR_BIT) == 0)
        return positive < 4096 ? -positive : -EIO;
    if (positive & PVFS_NON_ERRNO_ERROR_BIT)
        return (positive & 127) == (PVFS_ECANCEL & 127) ? -ECANCELED : -EREMOTEIO;
    int number = mapping ? mapping(positive) : 0;
    return number > 0 && number < 4096 ? -number : -EIO;
}

static size_t slot_of(PVFS_object_ref ref)
{
    return (size_t)((ref.handle ^ (uint64_t)ref.fs_id << 40) * 0x9e3779b97f4a7c15ull >> 52) % OBJECTS;
}

/* Returns the handle of an object in the trace; 0 if it has no name there yet. */
static uint64_t known_handle(PVFS_object_ref ref)
{
    size_t at = slot_of(ref);
    uint64_t traced = 0;
    if (ref.handle && try_lock()) {
        if (objects[at].handle == ref.handle && objects[at].fs_id == ref.fs_id)
            traced = objects[at].traced;
        unlock();
    }
    return traced;
}

/* Returns the handle of an object in the trace, and names the object if necessary. `name` is the
 * name by which it was found or created, or NULL. */
static uint64_t ensure_handle(PVFS_object_ref ref, const char *name)
{
    size_t at = slot_of(ref);
    uint64_t traced = known_handle(ref);
    if (traced || !ref.handle)
        return traced;
    char path[320];
    snprintf(path, sizeof path, "pvfs2:%d:%llu%s%.255s", ref.fs_id, (unsigned long long)ref.handle, name ? ":" : "",
             name ? name : "");
    traced = miot_name(path);
    if (traced && try_lock()) {
        objects[at].handle = ref.handle, objects[at].fs_id = ref.fs_id, objects[at].traced = traced;
        unlock();
    }
    return traced;
}

/* Formats the path of a name in a directory, or from the root of a file system. */
static void format_path(char *path, size_t size, PVFS_object_ref directory, const char *name)
{
    if (directory.handle)
        snprintf(path, size, "pvfs2:%d:%llu/%s", directory.fs_id, (unsigned long long)directory.handle, name);
    else
        snprintf(path, size, "pvfs2:%d:%s", directory.fs_id, name);
}

/* Sets the values that are known before the call. */
static void set_arguments(struct posted_request *to, const struct request_args *args)
{
    to->done = (struct miot_done){ 0, args->offset, args->length, 0, 0 };
    to->uid = args->credential && args->credential->userid != own_uid ? args->credential->userid : MIOT_NOBODY;
    to->created = args->created, to->count = args->count;
    to->path[0] = to->second[0] = to->name[0] = 0;
    if (args->name) {
        format_path(to->path, sizeof to->path, args->ref, args->name);
        snprintf(to->name, sizeof to->name, "%s", args->name);
    } else {
        to->done.handle = args->handle ? args->handle : ensure_handle(args->ref, NULL);
    }
    if (args->second && args->text_second)
        snprintf(to->second, sizeof to->second, "%s", args->second);
    else if (args->second)
        format_path(to->second, sizeof to->second, args->second_ref, args->second);
    if (args->target) {
        memcpy(to->second, to->path, sizeof to->second);
        snprintf(to->path, sizeof to->path, "%s", args->target);
    }
}

/* Sets the result, and returns the extension of the event. */
static struct miot_ext set_result(struct posted_request *of, PVFS_error error)
{
    uint8_t op = of->request.op;
    of->done.result = result_of(error);
    if (error >= 0 && of->count)
        of->done.result = op == MIOT_CLIENT_READ || op == MIOT_CLIENT_WRITE ? *(const int64_t *)of->count
                                                                            : (int64_t)*(const uint32_t *)of->count;
    struct miot_ext ext = MIOT_EXT_NONE;
    ext.path = of->path[0] ? of->path : NULL;
    ext.second = of->second[0] ? of->second : NULL;
    ext.caller_uid = of->uid;
    if (error >= 0 && of->created)
        ext.handle2 = ensure_handle(*of->created, of->name[0] ? of->name : NULL);
    return ext;
}

/* Returns the entry with the id `wanted` (0: a free one) among those in which `id` may be
 * stored; NULL if there is none. */
static struct posted_request *find_entry(PVFS_sys_op_id wanted, PVFS_sys_op_id id)
{
    size_t start = (size_t)((uint64_t)id * 0x9e3779b97f4a7c15ull >> 54);
    for (size_t probe = 0; probe < MAX_PROBES; probe++)
        if (posted[(start + probe) % POSTED].id == wanted)
            return &posted[(start + probe) % POSTED];
    return NULL;
}

/* Counts a non-blocking call that is about to be made. */
static void begin_post(void)
{
    if (try_lock()) {
        posting++;
        unlock();
    }
}

/* Handles the return of a non-blocking call: stores the request, or records it if it is complete
 * or refused. If the table is full, records it at once with -EINPROGRESS as its result. */
static void post_returned(struct posted_request *request, PVFS_error returned, const PVFS_sys_op_id *op_id)
{
    int error = returned, complete = returned != 0 || !op_id || *op_id == -1;
    struct posted_request *entry = NULL;
    int has_lock = try_lock();
    if (has_lock && !complete) {
        for (int i = 0; i < EARLY && !complete; i++)
            if (early[i].id == *op_id)
                early[i].id = 0, error = early[i].error, complete = 1;
        entry = complete ? NULL : find_entry(0, *op_id);
        if (entry && request->request.number) {
            memcpy(entry, request, sizeof *entry);
            entry->id = *op_id;
        }
    }
    if (has_lock) {
        if (posting > 0 && --posting == 0)
            memset(early, 0, sizeof early);
        unlock();
    }
    if (!request->request.number || entry)
        return;
    struct miot_ext ext = set_result(request, complete ? error : 0);
    if (!complete)
        request->done.result = -EINPROGRESS;
    miot_complete(&request->request, &request->done, &ext);
}

/* Records a request that has completed. */
static void record_completion(PVFS_sys_op_id id, int error)
{
    struct posted_request request;
    struct posted_request *found = NULL;
    if (id == 0 || id == -1 || !try_lock())
        return;
    found = find_entry(id, id);
    if (found) {
        memcpy(&request, found, sizeof request);
        found->id = 0;
    }
    for (int i = 0; !found && posting > 0 && i < EARLY; i++)
        if (early[i].id == 0) {
            early[i].id = id, early[i].error = error;
            break;
        }
    unlock();
    if (found) {
        struct miot_ext ext = set_result(&request, error);
        miot_complete(&request.request, &request.done, &ext);
    }
}

/* Begins a blocking call with its object, offset and length, so that a call that hangs is shown
 * with them. */
static struct miot_request begin(struct request_args *args)
{
    args->handle = args->name ? 0 : known_handle(args->ref);
    struct miot_request request =
        miot_begin_enclosing_on(MIOT_LAYER_CLIENT, args->op, args->handle, args->offset, args->length);
    if (request.number && !args->name && !args->handle && args->ref.handle) {
        /* The object has no name in the trace yet: the name is recorded first. */
        miot_cancel(&request);
        args->handle = ensure_handle(args->ref, NULL);
        request = miot_begin_enclosing_on(MIOT_LAYER_CLIENT, args->op, args->handle, args->offset, args->length);
    }
    return request;
}

/* Body of a blocking call. `call` uses `real`. */
#define BLOCKING(name, call, ...)                                                          \
    {                                                                                      \
        REAL(name);                                                                        \
        if (!real)                                                                         \
            return -PVFS_ENOSYS;                                                           \
        if (inside)                                                                        \
            return call;                                                                   \
        struct request_args args = { .offset = MIOT_NONE, .length = MIOT_NONE, __VA_ARGS__ };\
        struct posted_request request;                                                     \
        request.request = begin(&args);                                                    \
        inside = 1;                                                                        \
        PVFS_error error = call;                                                           \
        inside = 0;                                                                        \
        if (request.request.number) {                                                      \
            int number = errno;                                                            \
            set_arguments(&request, &args);                                                \
            struct miot_ext ext = set_result(&request, error);                             \
            miot_end_ext(&request.request, &request.done, &ext);                           \
            errno = number;                                                                \
        }                                                                                  \
        return error;                                                                      \
    }

/* Body of a non-blocking call. */
#define POSTING(name, call, ...)                                                           \
    {                                                                                      \
        REAL(name);                                                                        \
        if (!real)                                                                         \
            return -PVFS_ENOSYS;                                                           \
        if (inside)                                                                        \
            return call;                                                                   \
        struct request_args args = { .offset = MIOT_NONE, .length = MIOT_NONE, __VA_ARGS__ };\
        struct posted_request request;                                                     \
        request.request = miot_submit(MIOT_LAYER_CLIENT, args.op);                         \
        if (request.request.number)                                                        \
            set_arguments(&request, &args);                                                \
        begin_post();                                                                      \
        inside = 1;                                                                        \
        PVFS_error error = call;                                                           \
        inside = 0;                                                                        \
        int number = errno;                                                                \
        post_returned(&request, error, op_id);                                             \
        errno = number;                                                                    \
        return error;                                                                      \
    }

/* Returns the bytes that a request description of the library selects. The function is looked up
 * at run time, because programs without the library may load this one too. */
static uint64_t bytes_of(PVFS_Request request)
{
    static __typeof__(&PVFS_Request_size) size_of;
    PVFS_size size = 0;
    if (!size_of)
        *(void **)&size_of = dlsym(RTLD_DEFAULT, "PVFS_Request_size");
    return request && size_of && size_of(request, &size) == 0 && size >= 0 ? (uint64_t)size : MIOT_NONE;
}

static uint8_t io_op(enum PVFS_io_type type)
{
    return type == PVFS_IO_READ ? MIOT_CLIENT_READ : MIOT_CLIENT_WRITE;
}

#define ARGS_IO                                                                                                        \
    .op = io_op(type), .ref = ref, .offset = (uint64_t)file_req_offset, .length = bytes_of(mem_req),                   \
    .credential = credential, .count = resp
EXPORT PVFS_error PVFS_sys_io(PVFS_REF, PVFS_Request file_req, int64_t file_req_offset, void *buffer,
                              PVFS_Request mem_req, PVFS_CREDENTIAL, PVFS_sysresp_io *resp, enum PVFS_io_type type,
                              PVFS_HINTS)
BLOCKING(PVFS_sys_io, real(ref, file_req, file_req_offset, buffer, mem_req, credential, resp, type, hints), ARGS_IO)
EXPORT PVFS_error PVFS_isys_io(PVFS_REF, PVFS_Request file_req, int64_t file_req_offset, void *buffer,
                               PVFS_Request mem_req, PVFS_CREDENTIAL, PVFS_sysresp_io *resp, enum PVFS_io_type type,
                               PVFS_POSTED)
POSTING(PVFS_isys_io,
        real(ref, file_req, file_req_offset, buffer, mem_req, credential, resp, type, op_id, hints, user_ptr), ARGS_IO)

#define ARGS_LOOKUP .op = MIOT_CLIENT_LOOKUP, .name = name, .credential = credential, .created = &resp->ref
EXPORT PVFS_error PVFS_sys_lookup(PVFS_fs_id fs_id, char *name, PVFS_CREDENTIAL, PVFS_sysresp_lookup *resp,
                                  int32_t follow_link, PVFS_HINTS)
BLOCKING(PVFS_sys_lookup, real(fs_id, name, credential, resp, follow_link, hints), .ref = { 0, fs_id, 0 }, ARGS_LOOKUP)
EXPORT PVFS_error PVFS_sys_ref_lookup(PVFS_fs_id fs_id, char *name, PVFS_REF, PVFS_CREDENTIAL,
                                      PVFS_sysresp_lookup *resp, int32_t follow_link, PVFS_HINTS)
BLOCKING(PVFS_sys_ref_lookup, real(fs_id, name, ref, credential, resp, follow_link, hints), .ref = ref, ARGS_LOOKUP)
EXPORT PVFS_error PVFS_isys_ref_lookup(PVFS_fs_id fs_id, char *name, PVFS_REF, PVFS_CREDENTIAL,
                                       PVFS_sysresp_lookup *resp, int32_t follow_link, PVFS_POSTED)
POSTING(PVFS_isys_ref_lookup, real(fs_id, name, ref, credential, resp, follow_link, op_id, hints, user_ptr), .ref = ref,
        ARGS_LOOKUP)

/* Declares both forms of a call whose parameters are equal up to the hints; the non-blocking
 * form adds others. */
#define BOTH(name, PARAMETERS, ARGUMENTS, ...)                                                                         \
    EXPORT PVFS_error PVFS_sys_##name(PARAMETERS, PVFS_HINTS)                                                          \
    BLOCKING(PVFS_sys_##name, real(ARGUMENTS, hints), .credential = credential, __VA_ARGS__)                           \
    EXPORT PVFS_error PVFS_isys_##name(PARAMETERS, PVFS_POSTED)                                                        \
    POSTING(PVFS_isys_##name, real(ARGUMENTS, op_id, hints, user_ptr), .credential = credential, __VA_ARGS__)
#define LIST(...) __VA_ARGS__

BOTH(getattr, LIST(PVFS_REF, uint32_t mask, PVFS_CREDENTIAL, PVFS_sysresp_getattr *resp),
     LIST(ref, mask, credential, resp), .op = MIOT_CLIENT_GETATTR, .ref = ref)
BOTH(setattr, LIST(PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL), LIST(ref, attr, credential),
     .op = MIOT_CLIENT_SETATTR, .ref = ref)
BOTH(mkdir, LIST(char *name, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sysresp_mkdir *resp),
     LIST(name, ref, attr, credential, resp), .op = MIOT_CLIENT_MKDIR, .ref = ref, .name = name, .created = &resp->ref)
BOTH(symlink, LIST(char *name, PVFS_REF, char *target, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sysresp_symlink *resp),
     LIST(name, ref, target, attr, credential, resp), .op = MIOT_CLIENT_SYMLINK, .ref = ref, .name = name,
     .target = target, .created = &resp->ref)
BOTH(remove, LIST(char *name, PVFS_REF, PVFS_CREDENTIAL), LIST(name, ref, credential), .op = MIOT_CLIENT_UNLINK,
     .ref = ref, .name = name)
BOTH(rename, LIST(char *name, PVFS_REF, char *new_name, PVFS_object_ref new_ref, PVFS_CREDENTIAL),
     LIST(name, ref, new_name, new_ref, credential), .op = MIOT_CLIENT_RENAME, .ref = ref, .name = name,
     .second = new_name, .second_ref = new_ref)
BOTH(readdir, LIST(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL, PVFS_sysresp_readdir *resp),
     LIST(ref, token, count, credential, resp), .op = MIOT_CLIENT_READDIR, .ref = ref, .offset = token,
     .length = (uint64_t)count, .count = &resp->pvfs_dirent_outcount)
BOTH(readdirplus,
     LIST(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL, uint32_t mask,
          PVFS_sysresp_readdirplus *resp),
     LIST(ref, token, count, credential, mask, resp), .op = MIOT_CLIENT_READDIRPLUS, .ref = ref, .offset = token,
     .length = (uint64_t)count, .count = &resp->readdir.pvfs_dirent_outcount)
BOTH(truncate, LIST(PVFS_REF, PVFS_size size, PVFS_CREDENTIAL), LIST(ref, size, credential),
     .op = MIOT_CLIENT_TRUNCATE, .ref = ref, .length = (uint64_t)size)
BOTH(flush, LIST(PVFS_REF, PVFS_CREDENTIAL), LIST(ref, credential), .op = MIOT_CLIENT_FLUSH, .ref = ref)
BOTH(statfs, LIST(PVFS_fs_id fs_id, PVFS_CREDENTIAL, PVFS_sysresp_statfs *resp), LIST(fs_id, credential, resp),
     .op = MIOT_CLIENT_STATFS, .ref = { 0, fs_id, 0 }, .name = "/")

#define KEY .second = key ? key->buffer : NULL, .text_second = 1
BOTH(seteattr,
     LIST(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_ds_keyval *value, int32_t flags),
     LIST(ref, credential, key, value, flags), .op = MIOT_CLIENT_SETXATTR, .ref = ref, KEY,
     .length = value ? (uint64_t)value->buffer_sz : MIOT_NONE)
BOTH(seteattr_list,
     LIST(PVFS_REF, PVFS_CREDENTIAL, int32_t count, PVFS_ds_keyval *key, PVFS_ds_keyval *value, int32_t flags),
     LIST(ref, credential, count, key, value, flags), .op = MIOT_CLIENT_SETXATTR, .ref = ref, KEY,
     .length = value ? (uint64_t)value->buffer_sz : MIOT_NONE)
BOTH(geteattr_list, LIST(PVFS_REF, PVFS_CREDENTIAL, int32_t count, PVFS_ds_keyval *key, PVFS_sysresp_geteattr *resp),
     LIST(ref, credential, count, key, resp), .op = MIOT_CLIENT_GETXATTR, .ref = ref, KEY)
BOTH(deleattr, LIST(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key), LIST(ref, credential, key),
     .op = MIOT_CLIENT_REMOVEXATTR, .ref = ref, KEY)
BOTH(listeattr, LIST(PVFS_REF, PVFS_ds_position token, int32_t count, PVFS_CREDENTIAL, PVFS_sysresp_listeattr *resp),
     LIST(ref, token, count, credential, resp), .op = MIOT_CLIENT_LISTXATTR, .ref = ref, .length = (uint64_t)count,
     .count = &resp->nkey)

EXPORT PVFS_error PVFS_sys_geteattr(PVFS_REF, PVFS_CREDENTIAL, PVFS_ds_keyval *key, PVFS_ds_keyval *value, PVFS_HINTS)
BLOCKING(PVFS_sys_geteattr, real(ref, credential, key, value, hints), .op = MIOT_CLIENT_GETXATTR, .ref = ref,
         .credential = credential, KEY, .length = value ? (uint64_t)value->buffer_sz : MIOT_NONE)

#define ARGS_CREATE .op = MIOT_CLIENT_CREATE, .ref = ref, .name = name, .credential = credential, .created = &resp->ref
EXPORT PVFS_error PVFS_sys_create(char *name, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sys_dist *dist,
                                  PVFS_sysresp_create *resp, PVFS_sys_layout *layout, PVFS_HINTS)
BLOCKING(PVFS_sys_create, real(name, ref, attr, credential, dist, resp, layout, hints), ARGS_CREATE)
EXPORT PVFS_error PVFS_isys_create(char *name, PVFS_REF, PVFS_sys_attr attr, PVFS_CREDENTIAL, PVFS_sys_dist *dist,
                                   PVFS_sys_layout *layout, PVFS_sysresp_create *resp, PVFS_POSTED)
POSTING(PVFS_isys_create, real(name, ref, attr, credential, dist, layout, resp, op_id, hints, user_ptr), ARGS_CREATE)

/* Calls that report the completion of posted requests. */
#define TESTING(name)                                                                                                \
    EXPORT int name(PVFS_sys_op_id *ids, int *count, void **user_ptrs, int *errors, int timeout_ms)                   \
    {                                                                                                                 \
        REAL(name);                                                                                                   \
        if (!real)                                                                                                    \
            return -PVFS_ENOSYS;                                                                                      \
        int returned = real(ids, count, user_ptrs, errors, timeout_ms);                                               \
        int number = errno;                                                                                           \
        for (int i = 0; returned >= 0 && !inside && ids && count && errors && i < *count; i++)                        \
            record_completion(ids[i], errors[i]);                                                                             \
        errno = number;                                                                                               \
        return returned;                                                                                              \
    }
TESTING(PVFS_sys_testany)
TESTING(PVFS_sys_testsome)

EXPORT int PVFS_sys_wait(PVFS_sys_op_id op_id, const char *what, int *error)
{
    REAL(PVFS_sys_wait);
    if (!real)
        return -PVFS_ENOSYS;
    int returned = real(op_id, what, error);
    int number = errno;
    if (!inside)
        record_completion(op_id, returned ? returned : error ? *error : 0);
    errno = number;
    return returned;
}

EXPORT int __gossip_debug_va(uint64_t mask, char prefix, const char *format, va_list list)
{
    REAL(__gossip_debug_va);
    int recorded = 0;
    if (debug_destination & RECORD) {
        va_list copy;
        va_copy(copy, list);
        recorded = miot_vdebug(mask, prefix == '?' ? 'D' : prefix, format, copy);
        va_end(copy);
    }
    return real && (debug_destination & PASS || !recorded) ? real(mask, prefix, format, list) : 0;
}

EXPORT int __gossip_debug(uint64_t mask, char prefix, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int returned = __gossip_debug_va(mask, prefix, format, list);
    va_end(list);
    return returned;
}
