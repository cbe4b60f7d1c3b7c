/* Messages with random formats and arguments. Each is recorded by miot_debug, and the output of
 * snprintf is written to a file, one line in hexadecimal each.
 *   messages FILE SEED COUNT */
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <miot.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;
static FILE *expected;

static uint64_t number(void)
{
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull;
}

static unsigned below(unsigned n)
{
    return (unsigned)((number() >> 33) % n);
}

static void expect(const char *text, int length)
{
    static char line[1 << 17];
    char *at = line;
    for (int i = 0; i < length; i++) {
        *at++ = "0123456789abcdef"[(unsigned char)text[i] >> 4];
        *at++ = "0123456789abcdef"[(unsigned char)text[i] & 15];
    }
    *at++ = '\n';
    fwrite(line, 1, (size_t)(at - line), expected);
}

/* Integers and doubles are passed in separate registers. In any order of conversions, up to 8
 * doubles come from these eight, and integers and pointers from the others. */
#define PASSED(i, d) \
    i[0], i[1], i[2], i[3], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7], i[4], i[5], i[6], i[7], i[8], i[9], i[10], \
        i[11], i[12], i[13], i[14], i[15]

static const uint64_t integers[] = { 0, 1, 7, 8, 255, 256, 65535, INT_MAX, 1u + INT_MAX, UINT_MAX, INT64_MAX, 1ull << 63,
                                     UINT64_MAX, (uint64_t)-2, 1048574 };
static const double doubles[] = { 0, -0.0, 1, 0.5, 1.5, 2.5, 9.5, 99.995, 1e5, 999999.5, 1e15, 123456789.125, 1e-4, 9.9999e-5,
                                  1e-300, DBL_MAX, DBL_MIN, 5e-324, INFINITY, -INFINITY, NAN, 3.14159265358979, -2.0 / 3 };
static const char *const texts[] = { "", "a", "read", "/a/file of some length", "%d is no conversion", NULL };

static unsigned long long choose_integer(void)
{
    return below(3) ? integers[below(sizeof integers / sizeof *integers)] : number() >> below(64);
}

static double choose_double(void)
{
    if (below(3))
        return doubles[below(sizeof doubles / sizeof *doubles)];
    double value = (double)(int64_t)number() / (double)(1 + below(1000000));
    return below(2) ? value : value * pow(10, (int)below(40) - 20);
}

static void one(void)
{
    /* Buffers for formats that replace another format at the same address. */
    static char reused[8][512];
    char *format = below(4) ? malloc(512) : reused[below(8)];
    char *at = format;
    uint64_t i[16] = { 0 };
    double d[8] = { 0 };
    unsigned integer = 0, real = 0;
    for (unsigned conversions = below(7); conversions > 0 && integer < 12; conversions--) {
        static const char *const between[] = { "", " ", "handle ", "100%% ", ", ", ": \t", "\xc3\xa4=" };
        at += sprintf(at, "%s%%", between[below(7)]);
        char letter = "dioxXucspfFeEgGd"[below(16)];
        int is_real = strchr("fFeEgG", letter) != NULL, is_text = letter == 's' || letter == 'c' || letter == 'p';
        int precision = letter != 'c' && letter != 'p' && below(2);
        if (is_real && real == 8)
            is_real = 0, letter = 'd';
        if (below(4) == 0)
            *at++ = '-';
        if (!is_text) {
            if (below(4) == 0 && strchr("difFeEgG", letter))
                *at++ = "+ "[below(2)];
            /* Not with %g: glibc 2.36 writes 999999.5 as "1.e+06", without the zeros that the
             * flag requests. */
            if (below(4) == 0 && strchr("oxXfFeE", letter))
                *at++ = '#';
            if (below(4) == 0)
                *at++ = '0';
        }
        switch (below(4)) {
        case 0:
            *at++ = '*';
            i[integer++] = (uint64_t)(int64_t)((int)below(60) - 20);
            break;
        case 1:
            at += sprintf(at, "%u", 1 + below(40));
        }
        if (precision) {
            *at++ = '.';
            switch (below(3)) {
            case 0:
                *at++ = '*';
                i[integer++] = (uint64_t)(int64_t)((int)below(30) - 5);
                break;
            case 1:
                at += sprintf(at, "%u", below(20));
            }
        }
        if (is_real) {
            if (below(4) == 0)
                *at++ = 'l';
            d[real++] = choose_double();
        } else if (letter == 's') {
            i[integer++] = (uint64_t)(uintptr_t)texts[below(sizeof texts / sizeof *texts)];
        } else if (letter == 'c') {
            i[integer++] = 32 + below(95);
        } else if (letter == 'p') {
            i[integer++] = below(4) ? number() >> 16 : 0;
        } else {
            static const char *const sizes[] = { "", "h", "hh", "l", "ll", "z", "j", "t", "q" };
            at += sprintf(at, "%s", sizes[below(9)]);
            i[integer++] = choose_integer();
        }
        *at++ = letter;
    }
    strcpy(at, below(8) ? "\n" : "");
    if (below(20) == 0)
        memset(at, 'x', 420 - (size_t)(at - format)), format[420] = 0;
    static char text[1 << 16];
    expect(text, snprintf(text, sizeof text, format, PASSED(i, d)));
    errno = 4711;
    miot_debug(1ull << below(62), format, PASSED(i, d));
    if (errno != 4711)
        exit(3);
}

int main(int argc, char **argv)
{
    if (argc != 4 || !(expected = fopen(argv[1], "w")))
        return 2;
    state = strtoull(argv[2], NULL, 0) | 1;
    for (long count = atol(argv[3]); count > 0; count--)
        one();

    /* Constant strings are not copied. A string without an end is read only as far as printf
     * would. */
    static char text[256], whole[8000];
    int unharmed = 1;
    const char *with_n = "%d %n";
    expect(with_n, (int)strlen(with_n));
    miot_debug(1, with_n, 1, &unharmed);
    expect(text, sprintf(text, "%Lg %.3s", 2.5L, "abc"));
    miot_debug(1, "%Lg %.3s", 2.5L, (const char[]){ 'a', 'b', 'c' });
    memset(whole, 'y', sizeof whole - 1);
    miot_debug(2, "%s|%d", whole, 7);
    memcpy(whole + 4080, "\xe2\x80\xa6|7", 6);
    expect(whole, 4085);
    return unharmed == 1 && fclose(expected) == 0 ? 0 : 1;
}
