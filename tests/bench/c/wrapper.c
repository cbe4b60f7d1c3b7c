/* Preloaded wrapper that is the lower bound for any hook of the calls in CALLS.
 * With FLOOR it makes two clock reads and a 64-byte store into a ring of the thread, without it
 * only the call. With PATHS it also stores the path into the slots that follow. With UNTOUCHED the
 * pages of the ring are not touched in advance. A symbol is looked up once, so that a call costs
 * one indirect jump. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <x86intrin.h>

#define DATA (int fd, void *buffer, size_t length, off_t offset), (fd, buffer, length, offset)
#define STREAM (int fd, void *buffer, size_t length), (fd, buffer, length)
#define NAMED_STAT (const char *path, struct stat *facts), (path, facts)
#define NAMED_STAT64 (const char *path, struct stat64 *facts), (path, facts)
#define NAMED (const char *path), (path)
#define OPEN (const char *path, int flags, mode_t mode), (path, flags, mode)
#define CALLS(X)                                                                        \
	X(ssize_t, pread, DATA) X(ssize_t, pread64, DATA) X(ssize_t, pwrite, DATA)      \
	X(ssize_t, pwrite64, DATA) X(ssize_t, read, STREAM) X(ssize_t, write, STREAM)   \
	X(int, stat, NAMED_STAT) X(int, stat64, NAMED_STAT64) X(int, lstat, NAMED_STAT) \
	X(int, lstat64, NAMED_STAT64)                                                   \
	X(int, fstat64, (int fd, struct stat64 *facts), (fd, facts))                    \
	X(int, open, OPEN) X(int, open64, OPEN) X(int, close, (int fd), (fd))           \
	X(int, unlink, NAMED) X(int, rmdir, NAMED)                                      \
	X(int, access, (const char *path, int mode), (path, mode))                      \
	X(int, mkdir, (const char *path, mode_t mode), (path, mode))                    \
	X(DIR *, opendir, NAMED)

/* Until `find` has run, because constructors of other libraries may run before it. */
#define DECLARE(returned, name, ...) DECLARE_(returned, name, __VA_ARGS__)
#define DECLARE_(returned, name, parameters, arguments) \
	typedef returned name##_call parameters;        \
	static name##_call first_##name;                \
	static name##_call *next_##name = first_##name;
CALLS(DECLARE)

__attribute__((constructor)) static void find(void)
{
#define FIND(returned, name, ...) next_##name = (name##_call *)dlsym(RTLD_NEXT, #name);
	CALLS(FIND)
}

#define FIRST(returned, name, ...) FIRST_(returned, name, __VA_ARGS__)
#define FIRST_(returned, name, parameters, arguments) \
	static returned first_##name parameters       \
	{                                             \
		find();                               \
		return next_##name arguments;         \
	}
CALLS(FIRST)

#ifdef FLOOR
/* The slots of the longest path lie behind the ring, so that no path has to be split. */
enum { RING = 32768, LONGEST = 4096 / 64 };
struct slot {
	_Alignas(64) volatile uint64_t words[8];
};
static _Thread_local struct slot *ring __attribute__((tls_model("initial-exec")));
static _Thread_local uint64_t tail __attribute__((tls_model("initial-exec")));

__attribute__((cold, noinline)) static void claim(void)
{
	static struct slot rings[64][RING + LONGEST];
	static unsigned claimed;
	ring = rings[__atomic_fetch_add(&claimed, 1, __ATOMIC_RELAXED) % 64];
#ifndef UNTOUCHED
	for (int i = 0; i < RING + LONGEST; i++)
		ring[i].words[0] = 1;
#endif
}
#endif

static inline __attribute__((always_inline)) uint64_t begin(void)
{
#ifdef FLOOR
	return __rdtsc();
#else
	return 0;
#endif
}

static inline __attribute__((always_inline))
void end(uint64_t begun, uint64_t op, int fd, size_t length, off_t offset, ssize_t result)
{
#ifdef FLOOR
	uint64_t ended = __rdtsc();
	if (__builtin_expect(!ring, 0))
		claim();
	struct slot *slot = &ring[tail & (RING - 1)];
	slot->words[0] = op | tail << 32;
	slot->words[1] = ended;
	slot->words[2] = ended - begun;
	slot->words[3] = (uint64_t)fd;
	slot->words[4] = (uint64_t)offset;
	slot->words[5] = length;
	slot->words[6] = (uint64_t)result;
	slot->words[7] = tail++;
#else
	(void)begun, (void)op, (void)fd, (void)length, (void)offset, (void)result;
#endif
}

/* Stores the path of the call that has just ended. */
static inline __attribute__((always_inline)) void store(const char *path)
{
#ifdef PATHS
	size_t length = strnlen(path, LONGEST * 64);
	memcpy((void *)ring[tail & (RING - 1)].words, path, length);
	tail += (length + 63) / 64;
#else
	(void)path;
#endif
}

/* A call without and with a path. */
#define WRAP(returned, name, op, fd, length, offset, ...) WRAP_(returned, name, op, fd, length, offset, __VA_ARGS__)
#define WRAP_(returned, name, op, fd, length, offset, parameters, arguments) \
	returned name parameters                                             \
	{                                                                    \
		uint64_t begun = begin();                                    \
		returned result = next_##name arguments;                     \
		end(begun, op, fd, length, offset, (ssize_t)result);         \
		return result;                                               \
	}
#define WRAP_PATH(returned, name, op, argument, ...) WRAP_PATH_(returned, name, op, argument, __VA_ARGS__)
#define WRAP_PATH_(returned, name, op, argument, parameters, arguments) \
	returned name parameters                                        \
	{                                                               \
		uint64_t begun = begin();                               \
		returned result = next_##name arguments;                \
		end(begun, op, -1, argument, 0, (ssize_t)result);       \
		store(path);                                            \
		return result;                                          \
	}

WRAP(ssize_t, pread, 7, fd, length, offset, DATA)
WRAP(ssize_t, pread64, 7, fd, length, offset, DATA)
WRAP(ssize_t, read, 5, fd, length, 0, STREAM)
WRAP(int, fstat64, 12, fd, 0, 0, (int fd, struct stat64 *facts), (fd, facts))
WRAP(int, close, 11, fd, 0, 0, (int fd), (fd))
WRAP_PATH(int, stat, 9, 0, NAMED_STAT)
WRAP_PATH(int, stat64, 9, 0, NAMED_STAT64)
WRAP_PATH(int, lstat, 9, 0, NAMED_STAT)
WRAP_PATH(int, lstat64, 9, 0, NAMED_STAT64)
WRAP_PATH(int, unlink, 13, 0, NAMED)
WRAP_PATH(int, rmdir, 14, 0, NAMED)
WRAP_PATH(int, access, 15, (size_t)mode, (const char *path, int mode), (path, mode))
WRAP_PATH(int, mkdir, 16, mode, (const char *path, mode_t mode), (path, mode))
WRAP_PATH(DIR *, opendir, 17, 0, NAMED)

/* Their buffers are constant. */
#define WRAP_WRITE(name, op, offset, parameters, arguments)             \
	ssize_t name parameters                                         \
	{                                                               \
		uint64_t begun = begin();                               \
		ssize_t result = next_##name arguments;                 \
		end(begun, op, fd, length, offset, result);             \
		return result;                                          \
	}
WRAP_WRITE(write, 6, 0, (int fd, const void *data, size_t length), (fd, (void *)data, length))
WRAP_WRITE(pwrite, 8, offset, (int fd, const void *data, size_t length, off_t offset),
	   (fd, (void *)data, length, offset))
WRAP_WRITE(pwrite64, 8, offset, (int fd, const void *data, size_t length, off_t offset),
	   (fd, (void *)data, length, offset))

#define WRAP_OPEN(name)                                                           \
	int name(const char *path, int flags, ...)                                \
	{                                                                         \
		mode_t mode = 0;                                                  \
		if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {      \
			va_list more;                                             \
			va_start(more, flags);                                    \
			mode = va_arg(more, mode_t);                              \
			va_end(more);                                             \
		}                                                                 \
		uint64_t begun = begin();                                         \
		int result = next_##name(path, flags, mode);                      \
		end(begun, 10, -1, mode, flags, result);                          \
		store(path);                                                      \
		return result;                                                    \
	}
WRAP_OPEN(open)
WRAP_OPEN(open64)
