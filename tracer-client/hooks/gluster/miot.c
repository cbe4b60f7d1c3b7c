/* miot.so: translator for the top of a GlusterFS client graph. It records every file operation.
 *
 *   volume VOLUME-miot
 *       type debug/miot
 *       option record all          # all, data, meta, none
 *       option paths on
 *       subvolumes VOLUME
 *   end-volume
 *
 * A recorded file operation is wound with a cookie, an allocated struct pending_request. The
 * callback ends the request, on any thread. An operation that is not recorded is passed on without
 * a frame, as if this translator did not exist. The same applies if there is no memory for a
 * cookie.
 *
 * A request is shown as in flight until its callback. The context of an open file holds its handle
 * in the trace and its path. See docs/hooks/gluster.md.
 */

#include <glusterfs/defaults.h>
#include <glusterfs/glusterfs.h>
#include <glusterfs/logging.h>
#include <glusterfs/options.h>
#include <glusterfs/statedump.h>
#include <glusterfs/xlator.h>
#include <limits.h>
#include <miot.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Option `record`: one bit per group of operations. */
enum group { DATA = 1, META = 2 };

/* Maximum length in bytes of a recorded path. */
#define MAX_PATH_BYTES 4096

/* State of an instance. Accessed atomically, because options may change while requests run. */
struct settings {
    uint32_t groups;
    uint32_t paths;
    uint64_t recorded;
    uint64_t dropped;
};

/* Arguments of a request; zero if it has none. The pointers belong to the caller. */
struct request_args {
    loc_t *loc;
    loc_t *second;
    const char *name; /* recorded instead of a second path */
    const char *target; /* recorded instead of the first path */
    fd_t *fd;
    fd_t *from;
    fd_t *opens;
    uint64_t offset, length, offset_from;
};

/* The context of an open file. */
struct open_file {
    uint64_t handle;
    char path[]; /* shown if a request on the file hangs; empty if unknown */
};

/* A request between wind and callback. */
struct pending_request {
    struct miot_request request;
    struct miot_done done;
    struct miot_ext ext;
    fd_t *opens;
    char text[];
};

static uint32_t setting(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

static void set(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* Returns the path of a location, or its gfid in `buffer`; NULL if neither is known. */
static const char *path_of(loc_t *loc, char *buffer, size_t size)
{
    char gfid[64];

    if (loc->path && loc->path[0])
        return loc->path;
    if (!gf_uuid_is_null(loc->gfid)) {
        snprintf(buffer, size, "<gfid:%s>", uuid_utoa_r(loc->gfid, gfid));
    } else if (loc->inode && !gf_uuid_is_null(loc->inode->gfid)) {
        snprintf(buffer, size, "<gfid:%s>", uuid_utoa_r(loc->inode->gfid, gfid));
    } else if (!gf_uuid_is_null(loc->pargfid)) {
        snprintf(buffer, size, "<gfid:%s>/%s", uuid_utoa_r(loc->pargfid, gfid),
                 loc->name ? loc->name : "");
    } else {
        return NULL;
    }
    return buffer;
}

/* Allocates the context of a file; NULL without memory. */
static struct open_file *new_file(uint64_t handle, const char *path)
{
    size_t size = path ? strnlen(path, MAX_PATH_BYTES) + 1 : 1;
    struct open_file *file = malloc(sizeof *file + size);

    if (!file)
        return NULL;
    file->handle = handle;
    memcpy(file->path, path ? path : "", size - 1);
    file->path[size - 1] = '\0';
    return file;
}

/* Attaches a new context to an open file. Returns the context that the file has then: that of
 * another thread if it was faster, NULL without memory. */
static struct open_file *attach(xlator_t *this, fd_t *fd, struct open_file *file)
{
    uint64_t known = 0;

    LOCK(&fd->lock);
    if (__fd_ctx_get(fd, this, &known) == 0) {
        free(file);
        file = (struct open_file *)(uintptr_t)known;
    } else if (__fd_ctx_set(fd, this, (uint64_t)(uintptr_t)file) != 0) {
        free(file);
        file = NULL;
    }
    UNLOCK(&fd->lock);
    return file;
}

/* Returns the context of an open file: that of its open, or a new one if the open was not recorded.
 * NULL if none can be created. It is freed when the last reference to the file is removed. */
static struct open_file *file_of(xlator_t *this, fd_t *fd, int paths)
{
    uint64_t known = 0, handle = 0;
    struct open_file *file = NULL;
    char *path = NULL;

    if (!fd)
        return NULL;
    if (fd_ctx_get(fd, this, &known) == 0)
        return (struct open_file *)(uintptr_t)known;
    if (!paths) {
        handle = miot_handle();
    } else if (fd->inode && inode_path(fd->inode, NULL, &path) > 0 && path) {
        handle = miot_name(path);
    }
    if (handle != 0)
        file = new_file(handle, path);
    GF_FREE(path);
    if (!file)
        return NULL;
    return attach(this, fd, file);
}

/* Returns the bytes that a copy of a string takes, with its NUL. The copy is one byte longer than a
 * recorded path, so that MIOT recognizes it as cut. */
static size_t copy_size(const char *text) { return text ? strnlen(text, MAX_PATH_BYTES + 1) + 1 : 0; }

/* Copies a string to `*at` and advances `*at`. Returns the copy; NULL if the size is 0. */
static const char *copy_string(char **at, const char *text, size_t size)
{
    char *copy = *at;

    if (!size)
        return NULL;
    memcpy(copy, text, size - 1);
    copy[size - 1] = '\0';
    *at += size;
    return copy;
}

/* Begins a request; NULL if it is passed on without being recorded. */
static struct pending_request *begin(call_frame_t *frame, xlator_t *this, enum group group, uint8_t op,
                                     const struct request_args *args)
{
    struct settings *settings = this->private;
    char gfid[512], gfid_second[512];
    const char *path = args->target, *second = args->name;
    size_t path_size, second_size;
    struct miot_request request;
    struct pending_request *pending;
    struct open_file *file, *from;
    struct miot_ext shown;
    int paths;
    char *at;

    if (!(setting(&settings->groups) & group))
        return NULL;
    request = miot_submit(MIOT_LAYER_CLIENT, op);
    if (request.number == 0)
        return NULL;
    paths = (int)setting(&settings->paths);
    if (args->loc && !path)
        path = path_of(args->loc, gfid, sizeof gfid);
    if (args->second)
        second = path_of(args->second, gfid_second, sizeof gfid_second);
    /* Names of attributes are not paths. */
    if (!paths) {
        path = NULL;
        if (!args->name)
            second = NULL;
    }
    path_size = copy_size(path);
    second_size = copy_size(second);
    pending = malloc(sizeof *pending + path_size + second_size);
    if (!pending) {
        __atomic_fetch_add(&settings->dropped, 1, __ATOMIC_RELAXED);
        return NULL;
    }
    pending->request = request;
    pending->done = (struct miot_done){0, args->offset, args->length, 0, 0};
    pending->ext = (struct miot_ext)MIOT_EXT_NONE;
    at = pending->text;
    pending->ext.path = copy_string(&at, path, path_size);
    pending->ext.second = copy_string(&at, second, second_size);
    /* The pid of a service of GlusterFS itself is negative. */
    pending->ext.caller_tid = frame->root->pid > 0 ? (uint32_t)frame->root->pid : 0;
    pending->ext.caller_uid = frame->root->uid;
    file = file_of(this, args->fd, paths);
    if (file)
        pending->done.handle = file->handle;
    if (args->from && (from = file_of(this, args->from, paths))) {
        pending->ext.handle2 = from->handle;
        pending->ext.offset2 = args->offset_from;
    }
    pending->opens = args->opens;
    shown = pending->ext;
    if (!shown.path && file && paths)
        shown.path = file->path;
    miot_show(&pending->request, &pending->done, &shown);
    return pending;
}

/* Ends a request, in its callback. `value` is the result of a success. */
static void end(xlator_t *this, struct pending_request *pending, int32_t op_ret, int32_t op_errno, int64_t value)
{
    struct settings *settings = this->private;
    struct open_file *file = NULL;
    int recorded;

    pending->done.result = op_ret < 0 ? -(int64_t)op_errno : value;
    if (pending->opens && op_ret >= 0)
        pending->done.handle = miot_handle();
    recorded = miot_complete(&pending->request, &pending->done, &pending->ext);
    /* The fd is still valid: the callback of the translator above has not run. */
    if (recorded && pending->opens && pending->done.handle)
        file = new_file(pending->done.handle, pending->ext.path);
    if (file)
        attach(this, pending->opens, file);
    __atomic_fetch_add(recorded ? &settings->recorded : &settings->dropped, 1, __ATOMIC_RELAXED);
    free(pending);
}

/* Declares one operation: its name in GlusterFS, its group and its name in the trace; the
 * parameters of the call and of the callback, as declared and as passed on; the result of a
 * success; the arguments. */
#define BARE(...) __VA_ARGS__
#define OPERATION(fop, group, op, parameters, arguments, answer, answers, value, ...)                      \
    static int32_t on_##fop##_cbk(call_frame_t *frame, void *cookie, xlator_t *this, int32_t op_ret,       \
                                    int32_t op_errno, BARE answer)                                         \
    {                                                                                                      \
        end(this, cookie, op_ret, op_errno, value);                                                        \
        STACK_UNWIND_STRICT(fop, frame, op_ret, op_errno, BARE answers);                                   \
        return 0;                                                                                          \
    }                                                                                                      \
    static int32_t on_##fop(call_frame_t *frame, xlator_t *this, BARE parameters)                          \
    {                                                                                                      \
        struct request_args args = {.offset = MIOT_NONE, .length = MIOT_NONE, .offset_from = MIOT_NONE,    \
                                    __VA_ARGS__};                                                          \
        struct pending_request *pending = begin(frame, this, group, MIOT_CLIENT_##op, &args);              \
                                                                                                           \
        if (pending)                                                                                       \
            STACK_WIND_COOKIE(frame, on_##fop##_cbk, pending, FIRST_CHILD(this),                           \
                              FIRST_CHILD(this)->fops->fop, BARE arguments);                               \
        else                                                                                               \
            STACK_WIND_TAIL(frame, FIRST_CHILD(this), FIRST_CHILD(this)->fops->fop, BARE arguments);       \
        return 0;                                                                                          \
    }

/* Callback parameters that many operations share. */
#define NOTHING (dict_t * xdata)
#define PASS_NOTHING (xdata)
#define ATTRIBUTES (struct iatt * buf, dict_t * xdata)
#define PASS_ATTRIBUTES (buf, xdata)
#define BEFORE_AFTER (struct iatt * pre, struct iatt * post, dict_t * xdata)
#define PASS_BEFORE_AFTER (pre, post, xdata)
#define MADE (inode_t * inode, struct iatt * buf, struct iatt * pre, struct iatt * post, dict_t * xdata)
#define PASS_MADE (inode, buf, pre, post, xdata)
#define OPENED (fd_t * fd, dict_t * xdata)
#define PASS_OPENED (fd, xdata)
#define VALUES (dict_t * dict, dict_t * xdata)
#define PASS_VALUES (dict, xdata)
#define ENTRIES (gf_dirent_t * entries, dict_t * xdata)
#define PASS_ENTRIES (entries, xdata)

static const char *first_name(dict_t *dict)
{
    return dict && dict->members_list ? dict->members_list->key : NULL;
}

static uint64_t first_length(dict_t *dict)
{
    data_t *value = dict && dict->members_list ? dict->members_list->value : NULL;

    return value ? (uint64_t)value->len : MIOT_NONE;
}

#define FLAGS_AND_MODE(flags, mode) ((uint64_t)(uint32_t)(flags) | (uint64_t)(mode) << 32)
#define LENGTH_OF(lock) ((lock) && (lock)->l_len > 0 ? (uint64_t)(lock)->l_len : MIOT_NONE)
#define START_OF(lock) ((lock) ? (uint64_t)(lock)->l_start : MIOT_NONE)

/* Operations on data. */
OPERATION(readv, DATA, READ, (fd_t * fd, size_t size, off_t offset, uint32_t flags, dict_t *xdata),
          (fd, size, offset, flags, xdata),
          (struct iovec * vector, int32_t count, struct iatt *buf, struct iobref *iobref, dict_t *xdata),
          (vector, count, buf, iobref, xdata), op_ret, .fd = fd, .offset = (uint64_t)offset, .length = size)
OPERATION(writev, DATA, WRITE,
          (fd_t * fd, struct iovec *vector, int32_t count, off_t offset, uint32_t flags, struct iobref *iobref,
           dict_t *xdata),
          (fd, vector, count, offset, flags, iobref, xdata), BEFORE_AFTER, PASS_BEFORE_AFTER, op_ret, .fd = fd,
          .offset = (uint64_t)offset, .length = iov_length(vector, count))
OPERATION(copy_file_range, DATA, COPY_RANGE,
          (fd_t * from, off64_t offset_from, fd_t *to, off64_t offset, size_t size, uint32_t flags, dict_t *xdata),
          (from, offset_from, to, offset, size, flags, xdata),
          (struct iatt * buf, struct iatt *pre, struct iatt *post, dict_t *xdata), (buf, pre, post, xdata), op_ret,
          .fd = to, .offset = (uint64_t)offset, .length = size, .from = from, .offset_from = (uint64_t)offset_from)
OPERATION(flush, DATA, FLUSH, (fd_t * fd, dict_t *xdata), (fd, xdata), NOTHING, PASS_NOTHING, 0, .fd = fd)
OPERATION(fsync, DATA, FSYNC, (fd_t * fd, int32_t datasync, dict_t *xdata), (fd, datasync, xdata), BEFORE_AFTER,
          PASS_BEFORE_AFTER, 0, .fd = fd)
OPERATION(fallocate, DATA, FALLOCATE, (fd_t * fd, int32_t mode, off_t offset, size_t size, dict_t *xdata),
          (fd, mode, offset, size, xdata), BEFORE_AFTER, PASS_BEFORE_AFTER, 0, .fd = fd,
          .offset = (uint64_t)offset, .length = size)
OPERATION(discard, DATA, DISCARD, (fd_t * fd, off_t offset, size_t size, dict_t *xdata), (fd, offset, size, xdata),
          BEFORE_AFTER, PASS_BEFORE_AFTER, 0, .fd = fd, .offset = (uint64_t)offset, .length = size)
OPERATION(zerofill, DATA, ZEROFILL, (fd_t * fd, off_t offset, off_t size, dict_t *xdata), (fd, offset, size, xdata),
          BEFORE_AFTER, PASS_BEFORE_AFTER, 0, .fd = fd, .offset = (uint64_t)offset, .length = (uint64_t)size)

/* Operations on open files. */
OPERATION(open, META, OPEN, (loc_t * loc, int32_t flags, fd_t *fd, dict_t *xdata), (loc, flags, fd, xdata), OPENED,
          PASS_OPENED, 0, .loc = loc, .opens = fd, .length = FLAGS_AND_MODE(flags, 0))
OPERATION(create, META, CREATE,
          (loc_t * loc, int32_t flags, mode_t mode, mode_t umask, fd_t *fd, dict_t *xdata),
          (loc, flags, mode, umask, fd, xdata),
          (fd_t * fd, inode_t *inode, struct iatt *buf, struct iatt *pre, struct iatt *post, dict_t *xdata),
          (fd, inode, buf, pre, post, xdata), 0, .loc = loc, .opens = fd, .length = FLAGS_AND_MODE(flags, mode))
OPERATION(opendir, META, OPENDIR, (loc_t * loc, fd_t *fd, dict_t *xdata), (loc, fd, xdata), OPENED, PASS_OPENED, 0,
          .loc = loc, .opens = fd)
OPERATION(fstat, META, GETATTR, (fd_t * fd, dict_t *xdata), (fd, xdata), ATTRIBUTES, PASS_ATTRIBUTES, 0, .fd = fd)
OPERATION(ftruncate, META, TRUNCATE, (fd_t * fd, off_t size, dict_t *xdata), (fd, size, xdata), BEFORE_AFTER,
          PASS_BEFORE_AFTER, 0, .fd = fd, .length = (uint64_t)size)
OPERATION(fsetattr, META, SETATTR, (fd_t * fd, struct iatt *buf, int32_t valid, dict_t *xdata),
          (fd, buf, valid, xdata), BEFORE_AFTER, PASS_BEFORE_AFTER, 0, .fd = fd, .length = (uint32_t)valid)
OPERATION(fsyncdir, META, FSYNCDIR, (fd_t * fd, int32_t datasync, dict_t *xdata), (fd, datasync, xdata), NOTHING,
          PASS_NOTHING, 0, .fd = fd)
OPERATION(readdir, META, READDIR, (fd_t * fd, size_t size, off_t offset, dict_t *xdata), (fd, size, offset, xdata),
          ENTRIES, PASS_ENTRIES, op_ret, .fd = fd, .offset = (uint64_t)offset, .length = size)
OPERATION(readdirp, META, READDIRPLUS, (fd_t * fd, size_t size, off_t offset, dict_t *xdata),
          (fd, size, offset, xdata), ENTRIES, PASS_ENTRIES, op_ret, .fd = fd, .offset = (uint64_t)offset,
          .length = size)
OPERATION(seek, META, SEEK, (fd_t * fd, off_t offset, gf_seek_what_t what, dict_t *xdata), (fd, offset, what, xdata),
          (off_t offset, dict_t *xdata), (offset, xdata), offset, .fd = fd, .offset = (uint64_t)offset,
          .length = what == GF_SEEK_HOLE ? SEEK_HOLE : SEEK_DATA)
OPERATION(lk, META, LOCK, (fd_t * fd, int32_t cmd, struct gf_flock *lock, dict_t *xdata), (fd, cmd, lock, xdata),
          (struct gf_flock * lock, dict_t *xdata), (lock, xdata), 0, .fd = fd, .offset = START_OF(lock),
          .length = LENGTH_OF(lock))
OPERATION(finodelk, META, LOCK,
          (const char *volume, fd_t *fd, int32_t cmd, struct gf_flock *lock, dict_t *xdata),
          (volume, fd, cmd, lock, xdata), NOTHING, PASS_NOTHING, 0, .fd = fd, .name = volume,
          .offset = START_OF(lock), .length = LENGTH_OF(lock))
OPERATION(fentrylk, META, LOCK,
          (const char *volume, fd_t *fd, const char *entry, entrylk_cmd cmd, entrylk_type type, dict_t *xdata),
          (volume, fd, entry, cmd, type, xdata), NOTHING, PASS_NOTHING, 0, .fd = fd, .name = entry)
OPERATION(fgetxattr, META, GETXATTR, (fd_t * fd, const char *name, dict_t *xdata), (fd, name, xdata), VALUES,
          PASS_VALUES, op_ret, .fd = fd, .name = name)
OPERATION(fsetxattr, META, SETXATTR, (fd_t * fd, dict_t *dict, int32_t flags, dict_t *xdata),
          (fd, dict, flags, xdata), NOTHING, PASS_NOTHING, 0, .fd = fd, .name = first_name(dict),
          .length = first_length(dict))
OPERATION(fremovexattr, META, REMOVEXATTR, (fd_t * fd, const char *name, dict_t *xdata), (fd, name, xdata), NOTHING,
          PASS_NOTHING, 0, .fd = fd, .name = name)
OPERATION(fxattrop, META, XATTROP, (fd_t * fd, gf_xattrop_flags_t what, dict_t *dict, dict_t *xdata),
          (fd, what, dict, xdata), VALUES, PASS_VALUES, 0, .fd = fd, .name = first_name(dict))

/* Operations on names. */
OPERATION(lookup, META, LOOKUP, (loc_t * loc, dict_t *xdata), (loc, xdata),
          (inode_t * inode, struct iatt *buf, dict_t *xdata, struct iatt *post), (inode, buf, xdata, post), 0,
          .loc = loc)
OPERATION(stat, META, GETATTR, (loc_t * loc, dict_t *xdata), (loc, xdata), ATTRIBUTES, PASS_ATTRIBUTES, 0, .loc = loc)
OPERATION(setattr, META, SETATTR, (loc_t * loc, struct iatt *buf, int32_t valid, dict_t *xdata),
          (loc, buf, valid, xdata), BEFORE_AFTER, PASS_BEFORE_AFTER, 0, .loc = loc, .length = (uint32_t)valid)
OPERATION(truncate, META, TRUNCATE, (loc_t * loc, off_t size, dict_t *xdata), (loc, size, xdata), BEFORE_AFTER,
          PASS_BEFORE_AFTER, 0, .loc = loc, .length = (uint64_t)size)
OPERATION(access, META, ACCESS, (loc_t * loc, int32_t mask, dict_t *xdata), (loc, mask, xdata), NOTHING, PASS_NOTHING,
          0, .loc = loc, .length = (uint32_t)mask)
OPERATION(readlink, META, READLINK, (loc_t * loc, size_t size, dict_t *xdata), (loc, size, xdata),
          (const char *path, struct iatt *buf, dict_t *xdata), (path, buf, xdata), op_ret, .loc = loc)
OPERATION(mknod, META, MKNOD, (loc_t * loc, mode_t mode, dev_t device, mode_t umask, dict_t *xdata),
          (loc, mode, device, umask, xdata), MADE, PASS_MADE, 0, .loc = loc, .length = mode)
OPERATION(mkdir, META, MKDIR, (loc_t * loc, mode_t mode, mode_t umask, dict_t *xdata), (loc, mode, umask, xdata), MADE,
          PASS_MADE, 0, .loc = loc, .length = mode)
OPERATION(unlink, META, UNLINK, (loc_t * loc, int flags, dict_t *xdata), (loc, flags, xdata), BEFORE_AFTER,
          PASS_BEFORE_AFTER, 0, .loc = loc)
OPERATION(rmdir, META, RMDIR, (loc_t * loc, int flags, dict_t *xdata), (loc, flags, xdata), BEFORE_AFTER,
          PASS_BEFORE_AFTER, 0, .loc = loc)
OPERATION(symlink, META, SYMLINK, (const char *target, loc_t *loc, mode_t umask, dict_t *xdata),
          (target, loc, umask, xdata), MADE, PASS_MADE, 0, .target = target, .second = loc)
OPERATION(rename, META, RENAME, (loc_t * loc, loc_t *to, dict_t *xdata), (loc, to, xdata),
          (struct iatt * buf, struct iatt *pre, struct iatt *post, struct iatt *pre_to, struct iatt *post_to,
           dict_t *xdata),
          (buf, pre, post, pre_to, post_to, xdata), 0, .loc = loc, .second = to)
OPERATION(link, META, LINK, (loc_t * loc, loc_t *to, dict_t *xdata), (loc, to, xdata), MADE, PASS_MADE, 0, .loc = loc,
          .second = to)
OPERATION(statfs, META, STATFS, (loc_t * loc, dict_t *xdata), (loc, xdata), (struct statvfs * buf, dict_t *xdata),
          (buf, xdata), 0, .loc = loc)
OPERATION(setxattr, META, SETXATTR, (loc_t * loc, dict_t *dict, int32_t flags, dict_t *xdata),
          (loc, dict, flags, xdata), NOTHING, PASS_NOTHING, 0, .loc = loc, .name = first_name(dict),
          .length = first_length(dict))
OPERATION(getxattr, META, GETXATTR, (loc_t * loc, const char *name, dict_t *xdata), (loc, name, xdata), VALUES,
          PASS_VALUES, op_ret, .loc = loc, .name = name)
OPERATION(removexattr, META, REMOVEXATTR, (loc_t * loc, const char *name, dict_t *xdata), (loc, name, xdata), NOTHING,
          PASS_NOTHING, 0, .loc = loc, .name = name)
OPERATION(xattrop, META, XATTROP, (loc_t * loc, gf_xattrop_flags_t what, dict_t *dict, dict_t *xdata),
          (loc, what, dict, xdata), VALUES, PASS_VALUES, 0, .loc = loc, .name = first_name(dict))
OPERATION(inodelk, META, LOCK,
          (const char *volume, loc_t *loc, int32_t cmd, struct gf_flock *lock, dict_t *xdata),
          (volume, loc, cmd, lock, xdata), NOTHING, PASS_NOTHING, 0, .loc = loc, .name = volume,
          .offset = START_OF(lock), .length = LENGTH_OF(lock))
OPERATION(entrylk, META, LOCK,
          (const char *volume, loc_t *loc, const char *entry, entrylk_cmd cmd, entrylk_type type, dict_t *xdata),
          (volume, loc, entry, cmd, type, xdata), NOTHING, PASS_NOTHING, 0, .loc = loc, .name = entry)
OPERATION(lease, META, LOCK, (loc_t * loc, struct gf_lease *lease, dict_t *xdata), (loc, lease, xdata),
          (struct gf_lease * lease, dict_t *xdata), (lease, xdata), 0, .loc = loc, .name = "lease")
OPERATION(ipc, META, IOCTL, (int32_t op, dict_t *xdata), (op, xdata), NOTHING, PASS_NOTHING, 0, .length = (uint32_t)op)
OPERATION(put, DATA, WRITE,
          (loc_t * loc, mode_t mode, mode_t umask, uint32_t flags, struct iovec *vector, int32_t count, off_t offset,
           struct iobref *iobref, dict_t *xattr, dict_t *xdata),
          (loc, mode, umask, flags, vector, count, offset, iobref, xattr, xdata), MADE, PASS_MADE, op_ret, .loc = loc,
          .offset = (uint64_t)offset, .length = iov_length(vector, count))
OPERATION(icreate, META, MKNOD, (loc_t * loc, mode_t mode, dict_t *xdata), (loc, mode, xdata),
          (inode_t * inode, struct iatt *buf, dict_t *xdata), (inode, buf, xdata), 0, .loc = loc, .length = mode)
OPERATION(namelink, META, LINK, (loc_t * loc, dict_t *xdata), (loc, xdata), BEFORE_AFTER, PASS_BEFORE_AFTER, 0,
          .loc = loc)

/* Records the close of a file, when its last reference is removed. Files that were never opened
 * have contexts too. */
static void record_close(xlator_t *this, fd_t *fd, uint8_t op)
{
    struct settings *settings = this->private;
    struct miot_request request;
    struct miot_done done = {0, MIOT_NONE, MIOT_NONE, 0, 0};
    struct open_file *file;
    uint64_t known = 0;
    int recorded;

    if (fd_ctx_del(fd, this, &known) != 0)
        return;
    file = (struct open_file *)(uintptr_t)known;
    done.handle = file->handle;
    free(file);
    if (fd_is_anonymous(fd) || !(setting(&settings->groups) & META))
        return;
    request = miot_begin(MIOT_LAYER_CLIENT, op);
    if (request.number == 0)
        return;
    recorded = miot_end(&request, &done);
    __atomic_fetch_add(recorded ? &settings->recorded : &settings->dropped, 1, __ATOMIC_RELAXED);
}

static int32_t on_release(xlator_t *this, fd_t *fd)
{
    record_close(this, fd, MIOT_CLIENT_CLOSE);
    return 0;
}

static int32_t on_releasedir(xlator_t *this, fd_t *fd)
{
    record_close(this, fd, MIOT_CLIENT_CLOSEDIR);
    return 0;
}

static uint32_t groups_of(const char *record)
{
    if (strcmp(record, "data") == 0)
        return DATA;
    if (strcmp(record, "meta") == 0)
        return META;
    return strcmp(record, "none") == 0 ? 0 : DATA | META;
}

static const char *name_of(uint32_t groups)
{
    static const char *const names[] = {"none", "data", "meta", "all"};

    return names[groups & (DATA | META)];
}

static int32_t on_reconfigure(xlator_t *this, dict_t *options)
{
    struct settings *settings = this->private;
    char *record = NULL;
    gf_boolean_t paths = _gf_true;

    GF_OPTION_RECONF("record", record, options, str, out);
    GF_OPTION_RECONF("paths", paths, options, bool, out);
    set(&settings->groups, groups_of(record));
    set(&settings->paths, paths);
    return 0;
out:
    return -1;
}

extern xlator_api_t xlator_api;

static int32_t on_init(xlator_t *this)
{
    struct settings *settings = NULL;
    char *record = NULL;
    gf_boolean_t paths = _gf_true;

    if (!this->children || this->children->next) {
        gf_log(this->name, GF_LOG_ERROR, "debug/miot requires exactly one subvolume: correct the volume file");
        return -1;
    }
    /* In the structure, the id follows all fields whose size depends on GlusterFS's build
     * options. */
    if (this->id != xlator_api.xlator_id) {
        gf_log(this->name, GF_LOG_ERROR,
               "miot.so was built with headers of another GlusterFS, nothing is recorded: rebuild it");
        this->fops = default_fops;
        return 0;
    }
    GF_OPTION_INIT("record", record, str, out);
    GF_OPTION_INIT("paths", paths, bool, out);
    settings = calloc(1, sizeof *settings);
    if (!settings)
        goto out;
    set(&settings->groups, groups_of(record));
    set(&settings->paths, paths);
    this->private = settings;
    return 0;
out:
    return -1;
}

static void on_fini(xlator_t *this)
{
    free(this->private);
    this->private = NULL;
}

static int32_t on_dump(xlator_t *this)
{
    struct settings *settings = this->private;

    if (!settings)
        return 0;
    gf_proc_dump_add_section("xlator.debug.miot.%s", this->name);
    gf_proc_dump_write("record", "%s", name_of(setting(&settings->groups)));
    gf_proc_dump_write("paths", "%s", setting(&settings->paths) ? "on" : "off");
    gf_proc_dump_write("recorded", "%" PRIu64, __atomic_load_n(&settings->recorded, __ATOMIC_RELAXED));
    gf_proc_dump_write("dropped", "%" PRIu64, __atomic_load_n(&settings->dropped, __ATOMIC_RELAXED));
    return 0;
}

/* Operations without an entry are passed on: rchecksum, getspec, and those that move locks between
 * bricks. A client does not receive them from above. */
static struct xlator_fops fops = {
    .lookup = on_lookup,
    .stat = on_stat,
    .fstat = on_fstat,
    .truncate = on_truncate,
    .ftruncate = on_ftruncate,
    .access = on_access,
    .readlink = on_readlink,
    .mknod = on_mknod,
    .mkdir = on_mkdir,
    .unlink = on_unlink,
    .rmdir = on_rmdir,
    .symlink = on_symlink,
    .rename = on_rename,
    .link = on_link,
    .create = on_create,
    .open = on_open,
    .readv = on_readv,
    .writev = on_writev,
    .flush = on_flush,
    .fsync = on_fsync,
    .opendir = on_opendir,
    .fsyncdir = on_fsyncdir,
    .statfs = on_statfs,
    .setxattr = on_setxattr,
    .getxattr = on_getxattr,
    .removexattr = on_removexattr,
    .fsetxattr = on_fsetxattr,
    .fgetxattr = on_fgetxattr,
    .fremovexattr = on_fremovexattr,
    .lk = on_lk,
    .inodelk = on_inodelk,
    .finodelk = on_finodelk,
    .entrylk = on_entrylk,
    .fentrylk = on_fentrylk,
    .readdir = on_readdir,
    .readdirp = on_readdirp,
    .xattrop = on_xattrop,
    .fxattrop = on_fxattrop,
    .setattr = on_setattr,
    .fsetattr = on_fsetattr,
    .fallocate = on_fallocate,
    .discard = on_discard,
    .zerofill = on_zerofill,
    .ipc = on_ipc,
    .seek = on_seek,
    .lease = on_lease,
    .put = on_put,
    .icreate = on_icreate,
    .namelink = on_namelink,
    .copy_file_range = on_copy_file_range,
};

static struct xlator_cbks cbks = {.release = on_release, .releasedir = on_releasedir};

static struct xlator_dumpops dumpops = {.priv = on_dump};

static struct volume_options options[] = {
    {.key = {"record"},
     .type = GF_OPTION_TYPE_STR,
     .value = {"all", "data", "meta", "none"},
     .default_value = "all",
     .description = "File operations to record. data: reads, writes, copies, flushes, syncs and allocation; meta: all others."},
    {.key = {"paths"},
     .type = GF_OPTION_TYPE_BOOL,
     .default_value = "on",
     .description = "Record paths."},
    {.key = {NULL}},
};

xlator_api_t xlator_api = {
    .init = on_init,
    .fini = on_fini,
    .reconfigure = on_reconfigure,
    .op_version = {1},
    .dumpops = &dumpops,
    .fops = &fops,
    .cbks = &cbks,
    .options = options,
    .identifier = "miot",
    .xlator_id = 0x6d696f74, /* "miot" */
    .category = GF_MAINTAINED,
};
