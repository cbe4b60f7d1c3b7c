/* Uses every hooked call once: see expect.h. Usage: every_call NOTES, in an empty directory. */
#define _GNU_SOURCE
#include "expect.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int notes = -1;
static char directory[PATH_MAX];

static void note(const char *text, size_t length) { syscall(SYS_write, notes, text, length); }

void fail(const char *what) {
    char text[512];
    int length = snprintf(text, sizeof text, "every_call: %s: errno %d\n", what, errno);
    syscall(SYS_write, 2, text, length);
    syscall(SYS_exit_group, 1);
}

void expect_start(const char *name) {
    if (syscall(SYS_getcwd, directory, sizeof directory) < 0)
        fail("getcwd");
    notes = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    /* Moves the descriptor away from the numbers that the program gets. */
    int high = syscall(SYS_fcntl, notes, F_DUPFD_CLOEXEC, 900);
    syscall(SYS_close, notes);
    notes = high;
    if (notes < 0)
        fail(name);
}

static int put_path(char *out, const char *path) {
    if (!path)
        return sprintf(out, "\t-");
    if (path[0] == '/' || path[0] == '?' || path[0] == '=')
        return sprintf(out, "\t%s", path[0] == '=' ? path + 1 : path);
    return sprintf(out, "\t%s/%s", directory, path);
}

static int put_number(char *out, long number) {
    return number == ANY ? sprintf(out, "\t?") : number == NO ? sprintf(out, "\t-") : sprintf(out, "\t%ld", number);
}

void expect(const char *layer, const char *op, const char *path, const char *path2, long offset, long length,
            long arg, long result) {
    char line[3 * PATH_MAX];
    int saved = errno, at = sprintf(line, "%s\t%s", layer, op);
    at += put_path(line + at, path);
    at += put_path(line + at, path2);
    at += put_number(line + at, offset);
    at += put_number(line + at, length);
    at += put_number(line + at, arg);
    at += put_number(line + at, result);
    line[at++] = '\n';
    note(line, at);
    errno = saved;
}

int main(int argc, char **argv) {
    if (argc != 2)
        fail("usage: every_call NOTES");
    expect_start(argv[1]);
    every_posix();
    every_stdio();
    return 0;
}
