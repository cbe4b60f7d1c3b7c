/* Reads the arguments of a printf-style debug call, by the kinds that debug.rs found in its format,
 * and passes them on as words and bytes. Layout: proto/src/debug. */

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* Kinds and limits of miot_proto::debug: a message has at limit MAX_BYTES bytes of arguments. */
enum { INT = 1, LONG, DOUBLE, LONG_DOUBLE, TEXT, TEXT_UP_TO, TEXT_UP_TO_STAR };
#define MAX_BYTES 4096
#define CUT ((uint64_t)1 << 63)
#define NULL_TEXT UINT64_MAX

/* A message between its begin and its end; must match debug.rs. */
struct message {
    uint64_t begin;
    uint32_t number, enclosing;
    uint64_t handle;
    const char *format;
    const uint32_t *kinds;
    uint32_t count;
    uint32_t own_kinds[24];
};

HIDDEN int miot_debug_begin(struct message *message, const char *format);
HIDDEN int miot_debug_end(const struct message *message, uint64_t mask, char prefix, const void *arguments,
                          uint64_t length, int truncated);

HIDDEN int miot_debug_take(uint64_t mask, char prefix, const char *format, va_list list)
{
    struct message message;
    if (!miot_debug_begin(&message, format))
        return 0;
    unsigned char buffer[MAX_BYTES];
    uint64_t *words = (uint64_t *)(void *)buffer, last = 0;
    unsigned char *texts = buffer + 8 * message.count, *end = buffer + MAX_BYTES;
    int truncated = 0;
    for (uint32_t i = 0; i < message.count; i++) {
        uint32_t kind = message.kinds[i];
        size_t limit = SIZE_MAX;
        switch (kind & 0xff) {
        case LONG:
            words[i] = va_arg(list, uint64_t);
            continue;
        case INT:
            last = words[i] = (uint64_t)(int64_t)va_arg(list, int);
            continue;
        case DOUBLE:
        case LONG_DOUBLE: {
            double value = kind == DOUBLE ? va_arg(list, double) : (double)va_arg(list, long double);
            memcpy(&words[i], &value, sizeof value);
            continue;
        }
        case TEXT_UP_TO:
            limit = kind >> 8;
            break;
        case TEXT_UP_TO_STAR:
            limit = (int64_t)last < 0 ? SIZE_MAX : last;
            break;
        }
        const char *text = va_arg(list, const char *);
        if (!text) {
            words[i] = NULL_TEXT;
            continue;
        }
        size_t left = (size_t)(end - texts), length = 0;
        /* Read no byte that printf would not read. */
        length = strnlen(text, limit < left ? limit : left);
        int is_truncated = length == left && limit > left && text[left];
        memcpy(texts, text, length);
        words[i] = length | (is_truncated ? CUT : 0);
        texts += length;
        truncated |= is_truncated;
    }
    return miot_debug_end(&message, mask, prefix, buffer, (uint64_t)(texts - buffer), truncated);
}

HIDDEN int miot_debug_variadic(uint64_t mask, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int recorded = miot_debug_take(mask, 'D', format, list);
    va_end(list);
    return recorded;
}
