/* MIOT: record the I/O requests of a file-system client.
 *
 * Generated from tracer-client/src/capi.rs; do not edit.
 *
 *   struct miot_request r = miot_begin(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE);
 *   ssize_t n = ... the request ...;
 *   struct miot_done done = { handle, offset, length, n < 0 ? -errno : n, 0 };
 *   miot_end(&r, &done);
 *
 * Link with `pkg-config --cflags --libs miot`. Without a log-client on the node nothing is
 * recorded, and a request costs about a nanosecond.
 */


#ifndef MIOT_H
#define MIOT_H

#include <stdarg.h>
#include <stdint.h>

/* Layers. */
#define MIOT_LAYER_APP 1
#define MIOT_LAYER_MPI_IO 2
#define MIOT_LAYER_STDIO 3
#define MIOT_LAYER_POSIX 4
#define MIOT_LAYER_FUSE 5
#define MIOT_LAYER_CLIENT 6
#define MIOT_LAYER_BLOCK 7

/* Operations of the client, FUSE and block layers, of MPI-IO, and of the application. */
#define MIOT_APP_NOTE 1
#define MIOT_APP_PHASE 2
#define MIOT_APP_DEBUG 3
#define MIOT_APP_REGION 4
#define MIOT_MPI_IO_OPEN 1
#define MIOT_MPI_IO_CLOSE 2
#define MIOT_MPI_IO_DELETE 3
#define MIOT_MPI_IO_SET_SIZE 4
#define MIOT_MPI_IO_PREALLOCATE 5
#define MIOT_MPI_IO_GET_SIZE 6
#define MIOT_MPI_IO_GET_GROUP 7
#define MIOT_MPI_IO_GET_AMODE 8
#define MIOT_MPI_IO_SET_INFO 9
#define MIOT_MPI_IO_GET_INFO 10
#define MIOT_MPI_IO_SET_VIEW 11
#define MIOT_MPI_IO_GET_VIEW 12
#define MIOT_MPI_IO_READ_AT 13
#define MIOT_MPI_IO_READ_AT_ALL 14
#define MIOT_MPI_IO_WRITE_AT 15
#define MIOT_MPI_IO_WRITE_AT_ALL 16
#define MIOT_MPI_IO_IREAD_AT 17
#define MIOT_MPI_IO_IWRITE_AT 18
#define MIOT_MPI_IO_IREAD_AT_ALL 19
#define MIOT_MPI_IO_IWRITE_AT_ALL 20
#define MIOT_MPI_IO_READ 21
#define MIOT_MPI_IO_READ_ALL 22
#define MIOT_MPI_IO_WRITE 23
#define MIOT_MPI_IO_WRITE_ALL 24
#define MIOT_MPI_IO_IREAD 25
#define MIOT_MPI_IO_IWRITE 26
#define MIOT_MPI_IO_IREAD_ALL 27
#define MIOT_MPI_IO_IWRITE_ALL 28
#define MIOT_MPI_IO_SEEK 29
#define MIOT_MPI_IO_GET_POSITION 30
#define MIOT_MPI_IO_GET_BYTE_OFFSET 31
#define MIOT_MPI_IO_READ_SHARED 32
#define MIOT_MPI_IO_WRITE_SHARED 33
#define MIOT_MPI_IO_IREAD_SHARED 34
#define MIOT_MPI_IO_IWRITE_SHARED 35
#define MIOT_MPI_IO_READ_ORDERED 36
#define MIOT_MPI_IO_WRITE_ORDERED 37
#define MIOT_MPI_IO_SEEK_SHARED 38
#define MIOT_MPI_IO_GET_POSITION_SHARED 39
#define MIOT_MPI_IO_READ_AT_ALL_BEGIN 40
#define MIOT_MPI_IO_READ_AT_ALL_END 41
#define MIOT_MPI_IO_WRITE_AT_ALL_BEGIN 42
#define MIOT_MPI_IO_WRITE_AT_ALL_END 43
#define MIOT_MPI_IO_READ_ALL_BEGIN 44
#define MIOT_MPI_IO_READ_ALL_END 45
#define MIOT_MPI_IO_WRITE_ALL_BEGIN 46
#define MIOT_MPI_IO_WRITE_ALL_END 47
#define MIOT_MPI_IO_READ_ORDERED_BEGIN 48
#define MIOT_MPI_IO_READ_ORDERED_END 49
#define MIOT_MPI_IO_WRITE_ORDERED_BEGIN 50
#define MIOT_MPI_IO_WRITE_ORDERED_END 51
#define MIOT_MPI_IO_GET_TYPE_EXTENT 52
#define MIOT_MPI_IO_SET_ATOMICITY 53
#define MIOT_MPI_IO_GET_ATOMICITY 54
#define MIOT_MPI_IO_SYNC 55
#define MIOT_MPI_IO_COMM_SEND 56
#define MIOT_MPI_IO_COMM_RECV 57
#define MIOT_MPI_IO_COMM_SENDRECV 58
#define MIOT_MPI_IO_COMM_START 59
#define MIOT_MPI_IO_COMM_BARRIER 60
#define MIOT_MPI_IO_COMM_BCAST 61
#define MIOT_MPI_IO_COMM_GATHER 62
#define MIOT_MPI_IO_COMM_SCATTER 63
#define MIOT_MPI_IO_COMM_ALLGATHER 64
#define MIOT_MPI_IO_COMM_ALLTOALL 65
#define MIOT_MPI_IO_COMM_REDUCE 66
#define MIOT_MPI_IO_COMM_ALLREDUCE 67
#define MIOT_MPI_IO_COMM_REDUCE_SCATTER 68
#define MIOT_MPI_IO_COMM_SCAN 69
#define MIOT_CLIENT_LOOKUP 1
#define MIOT_CLIENT_GETATTR 2
#define MIOT_CLIENT_SETATTR 3
#define MIOT_CLIENT_CREATE 4
#define MIOT_CLIENT_OPEN 5
#define MIOT_CLIENT_CLOSE 6
#define MIOT_CLIENT_READ 7
#define MIOT_CLIENT_WRITE 8
#define MIOT_CLIENT_FLUSH 9
#define MIOT_CLIENT_FSYNC 10
#define MIOT_CLIENT_TRUNCATE 11
#define MIOT_CLIENT_FALLOCATE 12
#define MIOT_CLIENT_MKDIR 13
#define MIOT_CLIENT_RMDIR 14
#define MIOT_CLIENT_UNLINK 15
#define MIOT_CLIENT_RENAME 16
#define MIOT_CLIENT_LINK 17
#define MIOT_CLIENT_SYMLINK 18
#define MIOT_CLIENT_READLINK 19
#define MIOT_CLIENT_MKNOD 20
#define MIOT_CLIENT_OPENDIR 21
#define MIOT_CLIENT_READDIR 22
#define MIOT_CLIENT_CLOSEDIR 23
#define MIOT_CLIENT_FSYNCDIR 24
#define MIOT_CLIENT_STATFS 25
#define MIOT_CLIENT_GETXATTR 26
#define MIOT_CLIENT_SETXATTR 27
#define MIOT_CLIENT_LISTXATTR 28
#define MIOT_CLIENT_REMOVEXATTR 29
#define MIOT_CLIENT_ACCESS 30
#define MIOT_CLIENT_LOCK 31
#define MIOT_CLIENT_IOCTL 32
#define MIOT_CLIENT_COPY_RANGE 33
#define MIOT_CLIENT_SEEK 34
#define MIOT_CLIENT_READDIRPLUS 35
#define MIOT_CLIENT_DISCARD 36
#define MIOT_CLIENT_ZEROFILL 37
#define MIOT_CLIENT_XATTROP 38

/* Initializer of a struct miot_ext without attributes. */
#define MIOT_EXT_NONE {0, 0, 0, MIOT_NONE, 0, MIOT_NOBODY, 0, 0, MIOT_NONE, MIOT_NONE, MIOT_NONE}

/* Flags. */
#define MIOT_FLAG_ASYNC 4
#define MIOT_FLAG_APPEND 16
#define MIOT_FLAG_DIRECT 32

#ifdef __GNUC__
#define MIOT_PRINTF(string, first) __attribute__((__format__(__printf__, string, first)))
#else
#define MIOT_PRINTF(string, first)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 Records a message of a debug log without formatting it. The format's address and the arguments are
 copied, strings up to 4096 bytes in all, and the message is formatted when the trace is read. The
 mask is recorded, but not tested: the caller decides whether to record the message. A format with
 %n, %a, %m, wide characters or numbered arguments is recorded without arguments. Returns 1 if the
 message was recorded.
 */
int miot_debug(uint64_t mask, const char *format, ...) MIOT_PRINTF(2, 3);

/*
 miot_debug with a va_list, and a character for the kind of message ('D', 'E', ...).
 */
int miot_vdebug(uint64_t mask, char prefix, const char *format, va_list list) MIOT_PRINTF(3, 0);

#ifdef __cplusplus
}
#endif


/*
 "None" as offset or length: the request has none.
 */
#define MIOT_NONE 18446744073709551615ull

/*
 "Unknown" as caller_uid.
 */
#define MIOT_NOBODY 4294967295

/*
 A request between miot_begin and miot_end, or between miot_submit and miot_complete. The fields
 are private to MIOT.
 */
struct miot_request {
  /*
   Begin, raw ticks.
   */
  uint64_t begin;
  /*
   Number of the request; 0: it is not recorded.
   */
  uint32_t number;
  /*
   Number of the parent request.
   */
  uint32_t enclosing;
  /*
   Layer.
   */
  uint8_t layer;
  /*
   Operation.
   */
  uint8_t op;
  /*
   For a request of miot_show: where it is shown.
   */
  uint16_t shown;
  /*
   For a request of miot_submit: thread of the parent request, 0 if there is none.
   */
  uint32_t thread;
};

/*
 Result of a request.
 */
struct miot_done {
  /*
   Handle of the file (miot_open), 0 if none.
   */
  uint64_t handle;
  /*
   Byte offset, MIOT_NONE if none.
   */
  uint64_t offset;
  /*
   Bytes requested, MIOT_NONE if none.
   */
  uint64_t length;
  /*
   Bytes transferred, or another value of success; negative: -errno.
   */
  int64_t result;
  /*
   Flags: MIOT_FLAG_*.
   */
  uint16_t flags;
};

/*
 Further attributes of a request. Initialize with MIOT_EXT_NONE.
 */
struct miot_ext {
  /*
   Path of the request, a C string or NULL. A path longer than 4096 bytes is truncated and
   flagged.
   */
  const char *path;
  /*
   The second path of a rename, or the name of an attribute: a C string or NULL.
   */
  const char *second;
  /*
   Handle of the second file, from which a copy reads; 0 if none.
   */
  uint64_t handle2;
  /*
   Byte offset in the second file, MIOT_NONE if none.
   */
  uint64_t offset2;
  /*
   Thread that called the file-system client, 0 if unknown.
   */
  uint32_t caller_tid;
  /*
   User that called the file-system client, MIOT_NOBODY if unknown.
   */
  uint32_t caller_uid;
  /*
   Rank in the communicator of the file.
   */
  uint32_t mpi_rank;
  /*
   Size of that communicator, 0 if there is none.
   */
  uint32_t mpi_size;
  /*
   Offset in elementary types of the file view, MIOT_NONE if none.
   */
  uint64_t etypes;
  /*
   Size of the datatype, or of the file type if a view is set, bytes; MIOT_NONE if none.
   */
  uint64_t type_size;
  /*
   Extent of that type, bytes; MIOT_NONE if none.
   */
  uint64_t type_extent;
};

/*
 A region between miot_region_begin and miot_region_end. The fields are private to MIOT.
 */
struct miot_region {
  /*
   The request.
   */
  struct miot_request request;
  /*
   Name.
   */
  const char *name;
  /*
   Attributes.
   */
  const char *attributes;
  /*
   Number.
   */
  uint64_t number;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Begins a request of layer MIOT_LAYER_* and operation MIOT_CLIENT_* (or that of another layer).
 Pass the returned structure to miot_end, even if nothing is recorded.
 */
struct miot_request miot_begin(uint8_t layer, uint8_t op);

/*
 Begins a request that makes requests of its own: until its end it is the parent of the requests
 of this thread.
 */
struct miot_request miot_begin_enclosing(uint8_t layer, uint8_t op);

/*
 miot_begin with the arguments of the request, which are shown if it hangs: the file (miot_open),
 the byte offset and the bytes requested, MIOT_NONE if there are none.
 */
struct miot_request miot_begin_on(uint8_t layer,
                                  uint8_t op,
                                  uint64_t handle,
                                  uint64_t offset,
                                  uint64_t length);

/*
 miot_begin_enclosing with the arguments of the request, as for miot_begin_on.
 */
struct miot_request miot_begin_enclosing_on(uint8_t layer,
                                            uint8_t op,
                                            uint64_t handle,
                                            uint64_t offset,
                                            uint64_t length);

/*
 Cancels a request that is not recorded after all. Every request of miot_begin needs this or an
 end.

 # Safety
 - The pointer is null or points to a valid structure.
 */
void miot_cancel(const struct miot_request *request);

/*
 Ends a request: takes the completion time and commits the event. Returns 1 if it was recorded, 0
 if not (nothing is recorded now, or the event was dropped and counted).

 # Safety
 - Both pointers are null or point to valid structures.
 */
int miot_end(const struct miot_request *request, const struct miot_done *done);

/*
 Ends a request that has one or two paths (the second path of a rename, or the name of an
 attribute), each a C string or NULL. A path longer than 4096 bytes is truncated and flagged.

 # Safety
 - `request` and `done` are null or point to valid structures.
 - `path` and `second` are null or C strings.
 */
int miot_end_paths(const struct miot_request *request,
                   const struct miot_done *done,
                   const char *path,
                   const char *second);

/*
 Ends a request that has further attributes.

 # Safety
 - All pointers are null or point to valid structures.
 - The paths in `ext` are null or C strings.
 */
int miot_end_ext(const struct miot_request *request,
                 const struct miot_done *done,
                 const struct miot_ext *ext);

/*
 Begins a request that is served elsewhere: any thread may end it with miot_complete, or none. It
 is not shown as in flight, unless miot_show is called.
 */
struct miot_request miot_submit(uint8_t layer, uint8_t op);

/*
 Shows a request of miot_submit as in flight until miot_complete, which must follow, with the
 file, the byte offset and the bytes requested of `done`, and the path and caller_tid of `ext`.
 The path is also that of a file that has a handle. A process can show 512 such requests at the
 same time; further ones are recorded, but not shown.

 # Safety
 - All pointers are null or point to valid structures.
 - The path in `ext` is null or a C string.
 */
void miot_show(struct miot_request *request,
               const struct miot_done *done,
               const struct miot_ext *ext);

/*
 Ends a request of miot_submit, on any thread: takes the completion time and commits the event,
 flagged MIOT_FLAG_ASYNC. Returns the same as miot_end.

 # Safety
 - All pointers are null or point to valid structures.
 - The paths in `ext` are null or C strings.
 */
int miot_complete(const struct miot_request *request,
                  const struct miot_done *done,
                  const struct miot_ext *ext);

/*
 Records a request whose times are known, in ticks of miot_ticks. Call it soon after the
 completion. Returns the same as miot_end.

 # Safety
 - `done` is null or points to a valid structure.
 - `path` is null or a C string.
 */
int miot_record(uint8_t layer,
                uint8_t op,
                uint64_t begin_ticks,
                uint64_t end_ticks,
                const struct miot_done *done,
                const char *path);

/*
 Opens a file: records its path under a new handle and returns the handle. Returns 0 if nothing
 is recorded now.

 # Safety
 - `path` is null or a C string.
 */
uint64_t miot_open(const char *path);

/*
 Returns a new handle, for a request that opens a file. The handle gets its path from a request
 recorded with this handle, a path and no error. 0 while nothing is recorded.
 */
uint64_t miot_handle(void);

/*
 Returns a new handle for a file that was open before recording started, and records its path
 without an event. 0 if nothing is recorded now.

 # Safety
 - `path` is null or a C string.
 */
uint64_t miot_name(const char *path);

/*
 Closes a file of miot_open. Returns the same as miot_end.
 */
int miot_close(uint64_t handle);

/*
 Records an application note: any string, with the time. Returns 1 if it was recorded.

 # Safety
 - `text` is null or a C string.
 */
int miot_note(const char *text);

/*
 Begins a region: a named part of the run, such as an epoch or a checkpoint. `attributes` is a
 text such as "kind=compute", several separated by commas, or NULL. `number` is a number below
 2^63 that follows it ("epoch=" and 3, "epoch=3,step=" and 17), or MIOT_NONE. The trace stores
 each text once, so pass a value that is different each time as the number. Both texts must stay
 valid until miot_region_end, which must follow. Regions may overlap, and requests within a
 region do not become its children: analyses link them by thread and time.

 # Safety
 - `name` and `attributes` are null or C strings.
 */
struct miot_region miot_region_begin(const char *name, const char *attributes, uint64_t number);

/*
 Ends a region, in any thread. `result` is 0, or -errno of an error that ended it. Returns the
 same as miot_end.

 # Safety
 - `region` is null or points to a structure of miot_region_begin, whose texts are still valid.
 */
int miot_region_end(const struct miot_region *region, int64_t result);

/*
 Cancels a region, which is not recorded. Every region needs this or an end.

 # Safety
 - As for miot_region_end.
 */
void miot_region_cancel(const struct miot_region *region);

/*
 Returns 1 if nothing is recorded now in this process, and nothing was before: then the next
 request or region need not be begun. Call it once for each of them, because it counts them: now
 and then a request must look for a log-client. It costs a nanosecond.
 */
int miot_dormant(void);

/*
 Sets up recording before the program installs a filter of system calls (seccomp). Call it then,
 unless libmiot_posix.so is preloaded, which detects the installation. From then on MIOT makes no
 system calls of its own in this process.
 */
void miot_confine(void);

/*
 Returns the time in raw ticks.
 */
uint64_t miot_ticks(void);

/*
 Returns 1 if a request of this layer would be recorded now, 0 if not. Sets nothing up.
 */
int miot_active(uint8_t layer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MIOT_H */
