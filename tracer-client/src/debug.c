/* Takes the arguments of a printf-style debug call, by the kinds that debug.rs found in its format, and hands
 * them over as words and bytes: proto/src/debug. */

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* As miot_proto::debug has them. */
enum { INT = 1, LONG, DOUBLE, LONG_DOUBLE, TEXT, TEXT_UP_TO, TEXT_UP_TO_STAR };
#define ROOM 4096
#define CUT ((uint64_t)1 << 63)
#define NOTHING UINT64_MAX

/* A message between its begin and its end; see debug.rs. */
struct message {
    uint64_t begin;
    uint32_t number, enclosing;
    uint64_t handle;
    const char *format;
    const uint32_t *kinds;
    uint32_t count;
    uint32_t own[24];
};

HIDDEN int miot_debug_begin(struct message *message, const char *format);
HIDDEN int miot_debug_end(const struct message *message, uint64_t mask, char prefix, const void *arguments,
                          uint64_t length, int cut);

HIDDEN int miot_debug_take(uint64_t mask, char prefix, const char *format, va_list list)
{
    struct message message = { 0 };
    if (!miot_debug_begin(&message, format))
        return 0;
    unsigned char room[ROOM];
    uint64_t *words = (uint64_t *)(void *)room, last = 0;
    unsigned char *texts = room + 8 * message.count, *end = room + ROOM;
    int cut = 0;
    for (uint32_t i = 0; i < message.count; i++) {
        uint32_t kind = message.kinds[i];
        size_t most = SIZE_MAX;
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
            most = kind >> 8;
            break;
        case TEXT_UP_TO_STAR:
            most = (int64_t)last < 0 ? SIZE_MAX : last;
            break;
        }
        const char *text = va_arg(list, const char *);
        if (!text) {
            words[i] = NOTHING;
            continue;
        }
        size_t left = (size_t)(end - texts), length = 0;
        /* No byte is looked at that printf would not look at. */
        length = strnlen(text, most < left ? most : left);
        int more = length == left && most > left && text[left];
        memcpy(texts, text, length);
        words[i] = length | (more ? CUT : 0);
        texts += length;
        cut |= more;
    }
    return miot_debug_end(&message, mask, prefix, room, (uint64_t)(texts - room), cut);
}

HIDDEN int miot_debug_variadic(uint64_t mask, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int recorded = miot_debug_take(mask, 'D', format, list);
    va_end(list);
    return recorded;
}
