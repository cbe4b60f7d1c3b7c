/* Bodies of the variadic functions, see stdio/printing.rs. Each calls the hook of the same name
 * that takes a va_list. The C library's headers are not included, because they declare some of
 * these names as macros or under other symbols. */

#include <stdarg.h>

typedef void stream;

#define HIDDEN __attribute__((visibility("hidden")))

/* Body of a function whose last named parameter is `last`. `call` uses `list`. */
#define PASS(last, call)     \
    {                        \
        va_list list;        \
        va_start(list, last); \
        int result = call;   \
        va_end(list);        \
        return result;       \
    }

int vprintf(const char *, va_list);
int vfprintf(stream *, const char *, va_list);
int vdprintf(int, const char *, va_list);
int __vprintf_chk(int, const char *, va_list);
int __vfprintf_chk(stream *, int, const char *, va_list);
int __vdprintf_chk(int, int, const char *, va_list);
int vscanf(const char *, va_list);
int vfscanf(stream *, const char *, va_list);
int __isoc99_vscanf(const char *, va_list);
int __isoc99_vfscanf(stream *, const char *, va_list);

HIDDEN int miot_shim_printf(const char *format, ...)
PASS(format, vprintf(format, list))
HIDDEN int miot_shim_fprintf(stream *to, const char *format, ...)
PASS(format, vfprintf(to, format, list))
HIDDEN int miot_shim_dprintf(int fd, const char *format, ...)
PASS(format, vdprintf(fd, format, list))
HIDDEN int miot_shim_printf_chk(int level, const char *format, ...)
PASS(format, __vprintf_chk(level, format, list))
HIDDEN int miot_shim_fprintf_chk(stream *to, int level, const char *format, ...)
PASS(format, __vfprintf_chk(to, level, format, list))
HIDDEN int miot_shim_dprintf_chk(int fd, int level, const char *format, ...)
PASS(format, __vdprintf_chk(fd, level, format, list))
HIDDEN int miot_shim_scanf(const char *format, ...)
PASS(format, vscanf(format, list))
HIDDEN int miot_shim_fscanf(stream *from, const char *format, ...)
PASS(format, vfscanf(from, format, list))
HIDDEN int miot_shim_isoc99_scanf(const char *format, ...)
PASS(format, __isoc99_vscanf(format, list))
HIDDEN int miot_shim_isoc99_fscanf(stream *from, const char *format, ...)
PASS(format, __isoc99_vfscanf(from, format, list))

/* Present since glibc 2.38. Weak, because the tests of this crate are linked without the hooks. */
__attribute__((weak)) int __isoc23_vscanf(const char *, va_list);
__attribute__((weak)) int __isoc23_vfscanf(stream *, const char *, va_list);

HIDDEN int miot_shim_isoc23_scanf(const char *format, ...)
PASS(format, __isoc23_vscanf(format, list))
HIDDEN int miot_shim_isoc23_fscanf(stream *from, const char *format, ...)
PASS(format, __isoc23_vfscanf(from, format, list))
