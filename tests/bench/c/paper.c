/* A client as in the MIOT paper.
 *   paper response COUNT LOG
 *       Table I: time-stamp counts of a line of a formatted log, of its parts, and of the same line
 *       recorded raw, each COUNT times. Prints a line per quantity: its name, and the means of
 *       blocks.
 *   paper steps
 *       docs/hooks/instrument.md: cycles of each step of instrumenting a client, one line each
 *   paper io PATTERN FILE_BYTES TRANSFER
 *       Fig. 7: nanoseconds of a pass over a file through PVFS_sys_io. PATTERN is read, write,
 *       random-read or random-write. */
#define _GNU_SOURCE
#include <miot.h>
#include <pvfs2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <x86intrin.h>

extern PVFS_Request PVFS_BYTE;
int PVFS_sys_initialize(uint64_t mask);
int PVFS_Request_contiguous(int32_t count, PVFS_Request old, PVFS_Request *new);

static uint64_t now(void)
{
    unsigned processor;
    return __rdtscp(&processor);
}

static int order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

#define LOG_LINE write_line
#include "../../programs/pvfs/log_line.h"

static uint64_t marks[9];
#define MARK(step) (marks[step] = now())
#define LOG_LINE write_marked_line
#include "../../programs/pvfs/log_line.h"

static FILE *log_file;

__attribute__((noinline, format(printf, 2, 3))) static void line(char prefix, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_line(log_file, prefix, format, list);
    va_end(list);
}

__attribute__((noinline, format(printf, 2, 3))) static void marked_line(char prefix, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    write_marked_line(log_file, prefix, format, list);
    va_end(list);
}

#define MESSAGE(i) "%s: handle %llu, offset %llu, %llu bytes, %lld done\n", "client_io", 1048576ull + i % 64, \
                   4096ull * i, 4096ull, 4096ll

/* A lower bound for recording the same line: a clock read, and a copy of the arguments. */
__attribute__((noinline)) static void copy(const char *format, const char *name, uint64_t handle, uint64_t offset,
                                           uint64_t bytes, uint64_t done)
{
    static _Alignas(64) volatile uint64_t ring[4096][16];
    static uint64_t tail;
    volatile uint64_t *slot = ring[tail & 4095];
    slot[1] = __rdtsc();
    slot[2] = (uint64_t)(uintptr_t)format;
    slot[3] = handle, slot[4] = offset, slot[5] = bytes, slot[6] = done;
    size_t length = strnlen(name, 64);
    memcpy((void *)&slot[8], name, length);
    slot[7] = length;
    slot[0] = ++tail;
}

/* Table I. Each quantity is measured in a loop of its own, as in a client that does only this. The
 * loops take turns. Each gives the mean of the middle half of a block: the counter may advance in
 * steps of tens, which a median would show. */
enum { LINE, LINE_WITH_TZ, PARTS, RAW = PARTS + 8, RAW_AFTER_LINE, COPY, STAT, EMPTY, QUANTITIES };
enum { BLOCKS = 25 };
static const char *const names[QUANTITIES] = {
    "line", "line_with_tz", "sprintf", "gettimeofday", "localtime", "strftime", "sprintf_us", "vsnprintf",
    "fprintf", "fflush", "raw", "raw_after_line", "copy", "stat", "empty",
};
static uint64_t *counts[QUANTITIES];
static double means[QUANTITIES][BLOCKS];

static double middle_mean(uint64_t *values, long count)
{
    uint64_t sum = 0;
    qsort(values, (size_t)count, sizeof *values, order);
    for (long i = count / 4; i < count - count / 4; i++)
        sum += values[i];
    return (double)sum / (double)(count - count / 4 * 2);
}

#define MEASURE(what, ...)                                     \
    do {                                                       \
        uint64_t begin = now();                                \
        __VA_ARGS__;                                           \
        uint64_t end = now();                                  \
        if (i >= 0)                                            \
            counts[what][i] = end - begin;                     \
    } while (0)

/* Records the line. While the lane is full, it waits and measures again. */
static int measure_raw(int what, long i, unsigned long long n)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        int recorded;
        MEASURE(what, recorded = miot_debug(1u << 26, MESSAGE(n)));
        if (recorded)
            return 0;
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    return 3;
}

static int measure_block(long count, unsigned long long n)
{
    enum { WARM = 50 };
    struct stat facts;
    int failed = 0;
    for (int with_tz = 0; with_tz < 2; with_tz++) {
        if (with_tz)
            setenv("TZ", ":/etc/localtime", 1);
        else
            unsetenv("TZ");
        tzset();
        for (long i = -WARM; i < count; i++, n++)
            MEASURE(with_tz ? LINE_WITH_TZ : LINE, line('D', MESSAGE(n)));
    }
    unsetenv("TZ");
    tzset();
    for (long i = -WARM; i < count; i++, n++) {
        marked_line('D', MESSAGE(n));
        for (int step = 0; step < 8 && i >= 0; step++)
            counts[PARTS + step][i] = marks[step + 1] - marks[step];
    }
    for (long i = -WARM; i < count && !failed; i++, n++)
        failed = measure_raw(RAW, i, n);
    for (long i = -WARM; i < count && !failed; i++, n++) {
        line('D', MESSAGE(n));
        failed = measure_raw(RAW_AFTER_LINE, i, n);
    }
    for (long i = -WARM; i < count; i++, n++)
        MEASURE(COPY, copy(MESSAGE(n)));
    for (long i = -WARM; i < count; i++)
        MEASURE(STAT, stat("/etc/localtime", &facts));
    for (long i = -WARM; i < count; i++)
        MEASURE(EMPTY, (void)0);
    return failed;
}

static int response(long count, const char *log)
{
    count /= BLOCKS;
    if (count < 1 || !(log_file = fopen(log, "w")))
        return 2;
    for (int what = 0; what < QUANTITIES; what++)
        counts[what] = calloc((size_t)count, sizeof(uint64_t));
    for (int block = 0; block < BLOCKS; block++) {
        int failed = measure_block(count, (unsigned long long)(block * count));
        if (failed)
            return failed;
        for (int what = 0; what < QUANTITIES; what++)
            means[what][block] = middle_mean(counts[what], count);
    }
    for (int what = 0; what < QUANTITIES; what++) {
        printf("%s", names[what]);
        for (int block = 0; block < BLOCKS; block++)
            printf(" %.2f", means[what][block]);
        puts("");
    }
    return 0;
}

/* Rounds of a burst that fits every lane, with time to drain in between. The result is the
 * median of the rounds. */
#define STEP(name, ...)                                             \
    do {                                                            \
        static uint64_t rounds[41];                                 \
        for (int round = -1; round < 41; round++) {                 \
            uint64_t begin = now();                                 \
            for (uint64_t i = 0; i < 500; i++) {                    \
                __asm__ volatile("" : : "r"(i) : "memory");         \
                __VA_ARGS__;                                        \
            }                                                       \
            if (round >= 0)                                         \
                rounds[round] = now() - begin;                      \
            nanosleep(&(struct timespec){ 0, 5000000 }, NULL);      \
        }                                                           \
        qsort(rounds, 41, sizeof *rounds, order);                   \
        printf("%.1f %s\n", (double)rounds[20] / 500, name);        \
    } while (0)

static int steps(void)
{
    uint64_t file = miot_open("/a/file");
    struct miot_request r;
    struct miot_done done = { file, 0, 4096, 4096, 0 };
    struct miot_ext caller = MIOT_EXT_NONE;
    caller.caller_tid = 4711, caller.caller_uid = 1000;
    if (!file)
        return 3;
    STEP("the loop alone", (void)0);
    STEP("`miot_begin`, `miot_end`", r = miot_begin(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE), miot_end(&r, &done));
    STEP("`miot_begin_on`, `miot_end`", r = miot_begin_on(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE, file, i, 4096),
         miot_end(&r, &done));
    STEP("`miot_begin_enclosing`, `miot_end`", r = miot_begin_enclosing(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE),
         miot_end(&r, &done));
    STEP("`miot_submit`, `miot_complete`", r = miot_submit(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE),
         miot_complete(&r, &done, NULL));
    STEP("the same with the caller", r = miot_submit(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE),
         miot_complete(&r, &done, &caller));
    STEP("`miot_begin`, `miot_end_paths`, a path of 20 bytes", r = miot_begin(MIOT_LAYER_CLIENT, MIOT_CLIENT_GETATTR),
         miot_end_paths(&r, &done, "/a/path/of/20/bytes/", NULL));
    STEP("`miot_open`, `miot_close`", miot_close(miot_open("/a/file")));
    STEP("`miot_debug`, no arguments", miot_debug(1, "client_io: entered\n"));
    STEP("`miot_debug`, five integers", miot_debug(1, "%d %lu %lu %lu %ld\n", 1, i, i, i, (long)i));
    STEP("`miot_debug`, four integers and a string", miot_debug(1, MESSAGE(i)));
    return 0;
}

static int io(const char *pattern, int64_t bytes, int32_t transfer)
{
    int is_random = strncmp(pattern, "random-", 7) == 0;
    enum PVFS_io_type type = strstr(pattern, "write") ? PVFS_IO_WRITE : PVFS_IO_READ;
    PVFS_credential me = { 0 };
    PVFS_object_ref root = { 1048576, 9, 0 };
    PVFS_sysresp_create made;
    PVFS_sysresp_io resp;
    PVFS_sys_attr attr = { { 0 } };
    PVFS_Request block;
    char *buffer = malloc((size_t)transfer);
    struct timespec begin, end;
    int64_t blocks = bytes / transfer, at = 0;
    if (blocks < 1 || PVFS_sys_initialize(0) != 0 ||
        PVFS_sys_create("file", root, attr, &me, NULL, &made, NULL, NULL) != 0)
        return 2;
    memset(buffer, 'x', (size_t)transfer);
    PVFS_Request_contiguous(transfer, PVFS_BYTE, &block);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int64_t i = 0; i < blocks; i++) {
        /* An odd step visits each block of a power of two once. */
        at = is_random ? (at + 2654435769 % blocks / 2 * 2 + 1) % blocks : i;
        if (PVFS_sys_io(made.ref, PVFS_BYTE, at * transfer, buffer, block, &me, &resp, type, NULL) != 0 ||
            resp.total_completed != transfer)
            return 3;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%lld\n", (end.tv_sec - begin.tv_sec) * 1000000000ll + end.tv_nsec - begin.tv_nsec);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "response") == 0)
        return response(atol(argv[2]), argv[3]);
    if (argc == 5 && strcmp(argv[1], "io") == 0)
        return io(argv[2], atoll(argv[3]), atoi(argv[4]));
    if (argc == 2 && strcmp(argv[1], "steps") == 0)
        return steps();
    fprintf(stderr, "usage: paper steps | paper response COUNT LOG | paper io PATTERN FILE_BYTES TRANSFER\n");
    return 2;
}
