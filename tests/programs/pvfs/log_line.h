/* Defines the function LOG_LINE, which writes a line of a debug log with the library calls of
 * PVFS's `__gossip_debug` and its default stamp. Where TZ is unset, `localtime` gets the
 * attributes of /etc/localtime. As in the original, two threads may mix up their stamps.
 *
 * MARK(step) is expanded before the first call and after each. A source may include this file
 * several times, each time with another LOG_LINE. */
#include <stdarg.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>

#ifndef MARK
#define MARK(step) (void)0
#endif

__attribute__((noinline, format(printf, 3, 0))) static int LOG_LINE(FILE *file, char prefix, const char *format,
                                                                    va_list list)
{
    enum { STAMP = 3, MICROSECONDS = 11, MESSAGE_TEXT = 20, BYTES = 1024 };
    char line[BYTES];
    struct timeval time;
    MARK(0);
    sprintf(line, "[%c ", prefix);
    MARK(1);
    gettimeofday(&time, NULL);
    MARK(2);
    time_t seconds = time.tv_sec;
    const struct tm *local = localtime(&seconds);
    MARK(3);
    strftime(line + STAMP, MICROSECONDS - STAMP + 1, "%H:%M:%S", local);
    MARK(4);
    sprintf(line + MICROSECONDS, ".%06ld] ", (long)time.tv_usec);
    MARK(5);
    vsnprintf(line + MESSAGE_TEXT, BYTES - MESSAGE_TEXT, format, list);
    MARK(6);
    fprintf(file, "%s", line);
    MARK(7);
    int error = fflush(file);
    MARK(8);
    return error;
}

#undef LOG_LINE
#undef MARK
