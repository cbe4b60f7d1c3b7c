/* A client as in the MIOT paper.
 *   paper response COUNT LOG
 *       Table I: time-stamp counts of a line of a formatted log, of its two steps, and of the same
 *       line recorded raw, each COUNT times. Prints the medians on one line.
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
#include <sys/time.h>
#include <time.h>
#include <x86intrin.h>

extern PVFS_Request PVFS_BYTE;
int PVFS_sys_initialize(uint64_t mask);
int PVFS_Request_contiguous(int32_t count, PVFS_Request old, PVFS_Request *new);

static uint64_t *counts[5];
static FILE *log_file;
static char line[5120];

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

__attribute__((noinline, format(printf, 1, 2))) static void format_line(const char *format, ...)
{
    struct timeval time;
    va_list list;
    gettimeofday(&time, NULL);
    time_t seconds = time.tv_sec;
    struct tm broken_down = *localtime(&seconds);
    size_t at = (size_t)snprintf(line, sizeof line, "[D ");
    at += strftime(line + at, sizeof line - at, "%H:%M:%S", &broken_down);
    at += (size_t)snprintf(line + at, sizeof line - at, ".%06ld] ", (long)time.tv_usec);
    va_start(list, format);
    vsnprintf(line + at, sizeof line - at, format, list);
    va_end(list);
}

static void write_line(void)
{
    fprintf(log_file, "%s", line);
    fflush(log_file);
}

#define MESSAGE(i) "%s: handle %llu, offset %llu, %llu bytes, %lld done\n", "client_io", 1048576ull + i % 64, \
                   4096ull * i, 4096ull, 4096ll

static int response(long count, const char *log)
{
    if (count < 1 || !(log_file = fopen(log, "w")))
        return 2;
    for (int i = 0; i < 5; i++)
        counts[i] = calloc((size_t)count, sizeof(uint64_t));
    for (long i = -100; i < count; i++) {
        unsigned long long n = (unsigned long long)(i + 100);
        uint64_t a = now();
        format_line(MESSAGE(n));
        uint64_t b = now();
        write_line();
        uint64_t c = now();
        format_line(MESSAGE(n));
        write_line();
        uint64_t d = now();
        int recorded = miot_debug(1u << 26, MESSAGE(n));
        uint64_t e = now();
        uint64_t f = now();
        if (i < 0)
            continue;
        if (!recorded)
            return 3;
        counts[0][i] = d - c, counts[1][i] = b - a, counts[2][i] = c - b, counts[3][i] = e - d, counts[4][i] = f - e;
    }
    for (int i = 0; i < 5; i++) {
        qsort(counts[i], (size_t)count, sizeof(uint64_t), order);
        printf("%llu ", (unsigned long long)counts[i][count / 2]);
    }
    puts("");
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
