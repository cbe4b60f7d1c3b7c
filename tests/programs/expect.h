/* Logs the expected event of each call, next to the call. The log is written by system calls
 * that no hook intercepts. */
#ifndef EXPECT_H
#define EXPECT_H

#include <errno.h>
#include <limits.h>

/* A field that is not compared, and one that must be empty. */
#define ANY (LONG_MIN)
#define NO (LONG_MIN + 1)

/* Writes one line: layer, operation, two paths, offset, length, argument, result. A path that
 * does not start with '/' is below the working directory. NULL: no path. "?": not compared. */
void expect(const char *layer, const char *op, const char *path, const char *path2, long offset, long length,
            long arg, long result);
void expect_start(const char *notes);
void every_posix(void);
void every_stdio(void);
void fail(const char *what);

/* Makes a call that returns -1 on failure, and expects its result or -errno. */
#define CALL(layer, op, path, path2, offset, length, arg, call)                                              \
    ({                                                                                                       \
        errno = 0;                                                                                           \
        long result_ = (long)(call);                                                                         \
        expect(layer, op, path, path2, offset, length, arg, result_ == -1 ? -(long)errno : result_);         \
        result_;                                                                                             \
    })

/* The same for a call that must succeed. */
#define OK(layer, op, path, path2, offset, length, arg, call)                                                \
    ({                                                                                                       \
        long ok_ = CALL(layer, op, path, path2, offset, length, arg, call);                                  \
        if (ok_ == -1)                                                                                       \
            fail(#call);                                                                                     \
        ok_;                                                                                                 \
    })

#endif
