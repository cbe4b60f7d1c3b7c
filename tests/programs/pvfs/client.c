/* A client of the library in library.c that logs its requests and their results, one line per
 * request: operation, offset, length, result (- if there is none).
 *   client NOTES THREADS REQUESTS */
#define _GNU_SOURCE
#include "pvfs2.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern PVFS_Request PVFS_BYTE;
int PVFS_sys_initialize(uint64_t mask);
int PVFS_sys_finalize(void);
int PVFS_Request_contiguous(int32_t count, PVFS_Request old, PVFS_Request *new);
int PVFS_Request_free(PVFS_Request *request);

static int notes;
static PVFS_credential me;
static PVFS_object_ref root, files[4];

/* Writes by a system call that no hook intercepts. */
static void note(const char *op, long long offset, long long length, long long result)
{
    char line[128], *at = line;
    at += sprintf(at, "%s ", op);
    at += offset < 0 ? sprintf(at, "- ") : sprintf(at, "%lld ", offset);
    at += length < 0 ? sprintf(at, "- ") : sprintf(at, "%lld ", length);
    at += sprintf(at, "%lld\n", result);
    if (syscall(1 /* write */, notes, line, (size_t)(at - line)) != at - line)
        abort();
}

static void check(int is, const char *what)
{
    if (!is) {
        fprintf(stderr, "client: %s\n", what);
        exit(1);
    }
}

static long long number(PVFS_error error)
{
    return error ? -PVFS_get_errno_mapping(-error) : 0;
}

/* A request in flight. */
struct asked {
    const char *op;
    int64_t offset, length;
    PVFS_Request memory;
    PVFS_sysresp_io resp;
    char *buffer;
};

static atomic_long in_flight, left;

static struct asked *ask(PVFS_object_ref ref, enum PVFS_io_type type, int64_t offset, int32_t length, PVFS_sys_op_id *id,
                         PVFS_error *error)
{
    struct asked *asked = calloc(1, sizeof *asked);
    asked->op = type == PVFS_IO_READ ? "read" : "write";
    asked->offset = offset, asked->length = length;
    asked->buffer = calloc(1, (size_t)length + 1);
    PVFS_Request_contiguous(length, PVFS_BYTE, &asked->memory);
    atomic_fetch_add(&in_flight, 1);
    *error = PVFS_isys_io(ref, PVFS_BYTE, offset, asked->buffer, asked->memory, &me, &asked->resp, type, id, NULL, asked);
    return asked;
}

static void answered(struct asked *asked, PVFS_error error)
{
    note(asked->op, asked->offset, asked->length, error ? number(error) : asked->resp.total_completed);
    PVFS_Request_free(&asked->memory);
    free(asked->buffer);
    free(asked);
    atomic_fetch_sub(&in_flight, 1);
}

/* Posts requests. Other threads observe the completions. */
static void *poster(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    while (atomic_fetch_sub(&left, 1) > 0) {
        PVFS_sys_op_id id = 0;
        PVFS_error error;
        while (atomic_load(&in_flight) > 200)
            usleep(100);
        int wrong = rand_r(&seed) % 50 == 0;
        PVFS_object_ref ref = wrong ? (PVFS_object_ref){ 4711, 9, 0 } : files[rand_r(&seed) % 4];
        enum PVFS_io_type type = rand_r(&seed) % 2 ? PVFS_IO_READ : PVFS_IO_WRITE;
        int32_t length = rand_r(&seed) % 20 ? 1 + rand_r(&seed) % 8192 : 0;
        struct asked *asked = ask(ref, type, rand_r(&seed) % 100000, length, &id, &error);
        if (error == 1)
            answered(asked, 0);
        else
            check(error == 0, "PVFS_isys_io");
    }
    return NULL;
}

static void *completer(void *arg)
{
    (void)arg;
    while (atomic_load(&left) > 0 || atomic_load(&in_flight) > 0) {
        PVFS_sys_op_id ids[64];
        void *askeds[64];
        int errors[64], count = 64;
        check(PVFS_sys_testany(ids, &count, askeds, errors, 5) == 0, "PVFS_sys_testany");
        for (int i = 0; i < count; i++)
            answered(askeds[i], errors[i]);
    }
    return NULL;
}

/* Calls that have two forms: first blocking, then non-blocking. */
#define BOTH(op, offset, length, result, call, ...)                                                     \
    do {                                                                                                \
        note(op, offset, length, number(PVFS_sys_##call(__VA_ARGS__, NULL)) ? -1 : (long long)(result)); \
        PVFS_sys_op_id id = -1;                                                                         \
        int error = PVFS_isys_##call(__VA_ARGS__, &id, NULL, NULL);                                     \
        if (!error && id != -1)                                                                         \
            check(PVFS_sys_wait(id, #call, &error) == 0, "PVFS_sys_wait");                              \
        check(error == 0, #call);                                                                       \
        note(op, offset, length, result);                                                               \
    } while (0)

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    notes = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    int threads = atoi(argv[2]);
    me.userid = geteuid();
    check(PVFS_sys_initialize(0) == 0, "PVFS_sys_initialize");

    PVFS_sysresp_lookup found;
    check(PVFS_sys_lookup(9, "/", &me, &found, 0, NULL) == 0, "lookup of the root");
    note("lookup", -1, -1, 0);
    root = found.ref;
    note("lookup", -1, -1, number(PVFS_sys_lookup(9, "/missing", &me, &found, 0, NULL)));

    PVFS_sys_attr attr = { { 1, 2, 3 } };
    for (int i = 0; i < 4; i++) {
        char name[] = { 'f', (char)('0' + i), 0 };
        PVFS_sysresp_create made;
        if (i % 2) {
            PVFS_sys_op_id id;
            int error = PVFS_isys_create(name, root, attr, &me, NULL, NULL, &made, &id, NULL, NULL);
            check(error == 0 && PVFS_sys_wait(id, "create", &error) == 0 && error == 0, "PVFS_isys_create");
        } else {
            check(PVFS_sys_create(name, root, attr, &me, NULL, &made, NULL, NULL) == 0, "PVFS_sys_create");
        }
        note("create", -1, -1, 0);
        files[i] = made.ref;
        note("create", -1, -1, number(PVFS_sys_create(name, root, attr, &me, NULL, &made, NULL, NULL)));
    }

    PVFS_Request block;
    PVFS_Request_contiguous(4096, PVFS_BYTE, &block);
    char buffer[4096] = "x";
    for (int64_t i = 0; i < 16; i++) {
        PVFS_sysresp_io resp = { 0 };
        check(PVFS_sys_io(files[0], PVFS_BYTE, i * 4096, buffer, block, &me, &resp, PVFS_IO_WRITE, NULL) == 0, "write");
        note("write", i * 4096, 4096, resp.total_completed);
        check(PVFS_sys_io(files[0], PVFS_BYTE, i * 3000, buffer, block, &me, &resp, PVFS_IO_READ, NULL) == 0, "read");
        note("read", i * 3000, 4096, resp.total_completed);
    }

    pthread_t ids[64], completers[2];
    atomic_store(&left, atol(argv[3]));
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, poster, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < 2; i++)
        pthread_create(&completers[i], NULL, completer, NULL);
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(completers[i], NULL);

    /* The same thread, by _testsome of the requests that it has posted. */
    for (int round = 0; round < 10; round++) {
        PVFS_sys_op_id posted[8];
        for (int i = 0; i < 8; i++) {
            PVFS_error error;
            ask(files[i % 4], PVFS_IO_WRITE, round * 1000 + i, 100, &posted[i], &error);
            check(error == 0, "PVFS_isys_io");
        }
        for (int got = 0; got < 8;) {
            PVFS_sys_op_id some[8];
            void *askeds[8];
            int errors[8], count = 8;
            memcpy(some, posted, sizeof some);
            check(PVFS_sys_testsome(some, &count, askeds, errors, 1000) == 0, "PVFS_sys_testsome");
            for (int i = 0; i < count; i++, got++)
                answered(askeds[i], errors[i]);
        }
    }

    static union {
        PVFS_sysresp_getattr attr;
        PVFS_sysresp_readdirplus plus;
        char room[512];
    } resp;
    PVFS_ds_keyval key = { "user.colour", 12, 0 }, value = { "red", 4, 0 };
    BOTH("getattr", -1, -1, 0, getattr, root, 1, &me, &resp.attr);
    BOTH("getattr", -1, -1, 0, getattr, files[1], 1, &me, &resp.attr);
    BOTH("setattr", -1, -1, 0, setattr, files[1], attr, &me);
    BOTH("truncate", -1, 12345, 0, truncate, files[1], 12345, &me);
    BOTH("flush", -1, -1, 0, flush, files[1], &me);
    BOTH("statfs", -1, -1, 0, statfs, 9, &me, (void *)&resp);
    BOTH("setxattr", -1, 4, 0, seteattr, files[2], &me, &key, &value, 0);
    BOTH("removexattr", -1, -1, 0, deleattr, files[2], &me, &key);
    BOTH("readdir", 7, 60, 4, readdir, root, 7, 60, &me, &resp.plus.readdir);
    BOTH("readdirplus", 7, 30, 4, readdirplus, root, 7, 30, &me, 1, &resp.plus);

    PVFS_sysresp_symlink link;
    PVFS_sysresp_mkdir directory;
    check(PVFS_sys_symlink("l", root, "f0", attr, &me, &link, NULL) == 0, "symlink");
    note("symlink", -1, -1, 0);
    check(PVFS_sys_mkdir("d", root, attr, &me, &directory, NULL) == 0, "mkdir");
    note("mkdir", -1, -1, 0);
    check(PVFS_sys_rename("f3", root, "renamed", root, &me, NULL) == 0, "rename");
    note("rename", -1, -1, 0);
    check(PVFS_sys_remove("renamed", root, &me, NULL) == 0, "remove");
    note("unlink", -1, -1, 0);
    note("unlink", -1, -1, number(PVFS_sys_remove("renamed", root, &me, NULL)));

    errno = 4711;
    __gossip_debug(1, 'E', "the program says %s: %d of %5.2f %%\n", "so", -3, 99.5);
    check(errno == 4711, "errno of __gossip_debug");
    return PVFS_sys_finalize();
}
