/* Every C standard I/O call, by every name that the C library has for it. Offsets are positions
 * of the stream. */
#define _GNU_SOURCE
#include "expect.h"
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

size_t __fread_chk(void *, size_t, size_t, size_t, FILE *), __fread_unlocked_chk(void *, size_t, size_t, size_t, FILE *);
char *__fgets_chk(char *, size_t, int, FILE *), *__fgets_unlocked_chk(char *, size_t, int, FILE *);
int __fprintf_chk(FILE *, int, const char *, ...), __printf_chk(int, const char *, ...),
    __vfprintf_chk(FILE *, int, const char *, va_list), __vprintf_chk(int, const char *, va_list);
int __isoc99_fscanf(FILE *, const char *, ...), __isoc99_vfscanf(FILE *, const char *, va_list),
    __isoc99_scanf(const char *, ...), __isoc99_vscanf(const char *, va_list);
int _IO_getc(FILE *), _IO_putc(int, FILE *);
int __dprintf_chk(int, int, const char *, ...), __vdprintf_chk(int, int, const char *, va_list);
ssize_t __getdelim(char **, size_t *, int, FILE *);
/* <stdio.h> renames these to the C99 versions. */
int old_fscanf(FILE *, const char *, ...) __asm__("fscanf");
int old_vfscanf(FILE *, const char *, va_list) __asm__("vfscanf");
int old_scanf(const char *, ...) __asm__("scanf");
int old_vscanf(const char *, va_list) __asm__("vscanf");

#define S(op, path, offset, length, arg, result) expect("stdio", op, path, NULL, offset, length, arg, result)

static char text[256];

static FILE *opened(FILE *file, const char *op, const char *path) {
    if (!file)
        fail(path);
    S(op, path, NO, NO, ANY, fileno(file));
    return file;
}

static void closed(FILE *file, const char *path) {
    S("fclose", path, NO, NO, NO, fclose(file));
}

static int by_list(int (*call)(FILE *, const char *, va_list), FILE *file, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int result = call(file, format, list);
    va_end(list);
    return result;
}

static int checked_by_list(FILE *file, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int result = file ? __vfprintf_chk(file, 1, format, list) : __vprintf_chk(1, format, list);
    va_end(list);
    return result;
}

static int print_by_list(const char *format, ...) {
    va_list list;
    va_start(list, format);
    int result = vprintf(format, list);
    va_end(list);
    return result;
}

static int scan_by_list(int (*call)(const char *, va_list), const char *format, ...) {
    va_list list;
    va_start(list, format);
    int result = call(format, list);
    va_end(list);
    return result;
}

static void writes(void) {
    FILE *f = opened(fopen("s", "w"), "fopen", "s");
    S("fwrite", "s", 0, 12, NO, 3 * (long)fwrite("abcdefghijkl", 3, 4, f));
    S("fwrite", "s", 12, 4, NO, (long)fwrite_unlocked("mno\n", 1, 4, f));
    S("fputs", "s", 16, 5, NO, fputs("line\n", f) >= 0 ? 5 : -1);
    S("fputs", "s", 21, 5, NO, fputs_unlocked("line\n", f) >= 0 ? 5 : -1);
    S("fputc", "s", 26, 1, NO, fputc('1', f) == '1');
    S("fputc", "s", 27, 1, NO, (putc)('2', f) == '2');
    S("fputc", "s", 28, 1, NO, (fputc_unlocked)('3', f) == '3');
    S("fputc", "s", 29, 1, NO, (putc_unlocked)('4', f) == '4');
    S("fputc", "s", 30, 1, NO, _IO_putc('5', f) == '5');
    S("fprintf", "s", 31, ANY, NO, fprintf(f, " %d", 77));
    S("fprintf", "s", 34, ANY, NO, by_list(vfprintf, f, " %d", 88));
    S("fprintf", "s", 37, ANY, NO, __fprintf_chk(f, 1, " %d", 99));
    S("fprintf", "s", 40, ANY, NO, checked_by_list(f, " %d\n", 11));
    S("fflush", "s", NO, NO, NO, fflush(f));
    S("fflush", "s", NO, NO, NO, fflush_unlocked(f));
    S("ftell", "s", NO, NO, NO, ftell(f));
    S("ftell", "s", NO, NO, NO, ftello(f));
    S("ftell", "s", NO, NO, NO, ftello64(f));
    closed(f, "s");
}

static void reads(void) {
    FILE *f = opened(fopen64("s", "r+"), "fopen", "s");
    S("fread", "s", 0, 6, NO, 2 * (long)fread(text, 2, 3, f));
    S("fread", "s", 6, 2, NO, (long)fread_unlocked(text, 1, 2, f));
    S("fread", "s", 8, 2, NO, (long)__fread_chk(text, sizeof text, 1, 2, f));
    S("fread", "s", 10, 2, NO, (long)__fread_unlocked_chk(text, sizeof text, 1, 2, f));
    S("fgetc", "s", 12, 1, NO, fgetc(f) == 'm');
    S("fgetc", "s", 13, 1, NO, (getc)(f) == 'n');
    S("ungetc", "s", NO, NO, NO, ungetc('n', f));
    S("fgetc", "s", 13, 1, NO, (fgetc_unlocked)(f) == 'n');
    S("fgetc", "s", 14, 1, NO, (getc_unlocked)(f) == 'o');
    S("fgetc", "s", 15, 1, NO, _IO_getc(f) == '\n');
    S("fgets", "s", 16, ANY, NO, (long)strlen(fgets(text, 50, f)));
    S("fseek", "s", -5, NO, SEEK_CUR, fseek(f, -5, SEEK_CUR));
    S("fgets", "s", 16, ANY, NO, (long)strlen(fgets_unlocked(text, 50, f)));
    S("fseek", "s", 16, NO, SEEK_SET, fseeko(f, 16, SEEK_SET));
    S("fgets", "s", 16, ANY, NO, (long)strlen(__fgets_chk(text, sizeof text, 50, f)));
    S("fseek", "s", 16, NO, SEEK_SET, fseeko64(f, 16, SEEK_SET));
    S("fgets", "s", 16, ANY, NO, (long)strlen(__fgets_unlocked_chk(text, sizeof text, 50, f)));
    char *line = NULL;
    size_t room = 0;
    S("getline", "s", 21, ANY, NO, getline(&line, &room, f));
    S("fgets", "s", 26, ANY, NO, (long)strlen(fgets(text, 6, f)));
    fpos_t at;
    fpos64_t at64;
    S("fgetpos", "s", NO, NO, NO, fgetpos(f, &at));
    S("fgetpos", "s", NO, NO, NO, fgetpos64(f, &at64));
    int number = 0;
    S("fscanf", "s", 31, ANY, NO, fscanf(f, "%d", &number) == 1 ? 3 : -1);
    S("fscanf", "s", 34, ANY, NO, by_list(__isoc99_vfscanf, f, "%d", &number) == 1 ? 3 : -1);
    S("fscanf", "s", 37, ANY, NO, old_fscanf(f, "%d", &number) == 1 ? 3 : -1);
    S("fscanf", "s", 40, ANY, NO, by_list(old_vfscanf, f, "%d", &number) == 1 ? 3 : -1);
    S("getdelim", "s", 43, ANY, NO, getdelim(&line, &room, ';', f));
    S("fsetpos", "s", ANY, NO, NO, fsetpos(f, &at));
    S("fsetpos", "s", ANY, NO, NO, fsetpos64(f, &at64));
    S("getdelim", "s", 31, ANY, NO, __getdelim(&line, &room, '8', f));
    rewind(f);
    S("rewind", "s", NO, NO, NO, 0);
    S("fread", "s", 0, 100, NO, (long)fread(text, 1, 100, f));
    S("fgetc", "s", 44, 1, NO, fgetc(f) == EOF ? 0 : 1);
    f = opened(freopen("s", "r", f), "freopen", "s");
    f = opened(freopen64("s2", "w", f), "freopen", "s2");
    closed(f, "s2");
    free(line);

    int fd = open("s", O_RDONLY);
    expect("posix", "open", "s", NULL, NO, NO, O_RDONLY, fd);
    f = opened(fdopen(fd, "r"), "fdopen", "s");
    S("fread", "s", 0, 4, NO, (long)fread(text, 1, 4, f));
    closed(f, "s");
    errno = 0;
    f = fopen("none/s", "r");
    S("fopen", "none/s", NO, NO, ANY, f ? 0 : -(long)errno);
    static FILE *(*const temporary[])(void) = {tmpfile, tmpfile64};
    for (int i = 0; i < 2; i++) {
        f = temporary[i]();
        if (!f)
            fail("tmpfile");
        expect("stdio", "tmpfile", "?", NULL, NO, NO, NO, fileno(f));
        closed(f, "?");
    }
}

static int to_descriptor(int (*call)(int, const char *, va_list), int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int result = call(fd, format, list);
    va_end(list);
    return result;
}

static int to_descriptor_checked(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int result = __vdprintf_chk(fd, 1, format, list);
    va_end(list);
    return result;
}

/* Formatted writes to a descriptor are recorded like those to a stream. */
static void descriptors(void) {
    int fd = open("dprintf", O_RDWR | O_CREAT, 0600);
    expect("posix", "open", "dprintf", NULL, NO, NO, ANY, fd);
#define D(offset, length, call) expect("stdio", "fprintf", "dprintf", NULL, offset, length, NO, call)
    D(0, 3, dprintf(fd, "%d", 123));
    D(3, 4, to_descriptor(vdprintf, fd, "%d", 1234));
    D(7, 5, __dprintf_chk(fd, 1, "%d", 12345));
    D(12, 6, to_descriptor_checked(fd, "%d", 123456));
    expect("posix", "close", "dprintf", NULL, NO, NO, NO, close(fd));
}

static void standard(void) {
    if (!freopen("stdout", "w", stdout))
        fail("stdout");
    S("freopen", "stdout", NO, NO, ANY, fileno(stdout));
    S("puts", "stdout", 0, 4, NO, puts("abc") >= 0 ? 4 : -1);
    S("printf", "stdout", 4, ANY, NO, printf("%d ", 12345));
    S("printf", "stdout", 10, ANY, NO, print_by_list("%d ", 1));
    S("printf", "stdout", 12, ANY, NO, __printf_chk(1, "%d ", 2));
    S("printf", "stdout", 14, ANY, NO, checked_by_list(NULL, "%d\n", 3));
    S("fputc", "stdout", 16, 1, NO, (putchar)('a') == 'a');
    S("fputc", "stdout", 17, 1, NO, (putchar_unlocked)('b') == 'b');
    S("fflush", "stdout", NO, NO, NO, fflush(stdout));
    if (!freopen("stdout", "r", stdin))
        fail("stdin");
    S("freopen", "stdout", NO, NO, ANY, fileno(stdin));
    S("fgetc", "stdout", 0, 1, NO, (getchar)() == 'a');
    S("fgetc", "stdout", 1, 1, NO, (getchar_unlocked)() == 'b');
    S("fgets", "stdout", 2, ANY, NO, (long)strlen(fgets(text, 50, stdin)));
    int number = 0;
    S("scanf", "stdout", 4, ANY, NO, scanf("%d", &number) == 1 ? 5 : -1);
    S("scanf", "stdout", 9, ANY, NO, scan_by_list(__isoc99_vscanf, "%d", &number) == 1 ? 2 : -1);
    S("scanf", "stdout", 11, ANY, NO, old_scanf("%d", &number) == 1 ? 2 : -1);
    S("scanf", "stdout", 13, ANY, NO, scan_by_list(old_vscanf, "%d", &number) == 1 ? 2 : -1);

    FILE *command = popen("true", "r");
    expect("stdio", "popen", "?", NULL, NO, NO, NO, fileno(command));
    S("pclose", "?", NO, NO, NO, pclose(command));
}

void every_stdio(void) {
    writes();
    reads();
    descriptors();
    standard();
}
