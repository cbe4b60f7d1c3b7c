/* Calls each function of the C interface with null for each pointer argument, and prints the
 * number of calls that reported a recorded event. */
#include <miot.h>
#include <stdio.h>
#include <string.h>

static int recorded;

static void vdebug(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    recorded += miot_vdebug(1, 'D', format, list);
    va_end(list);
}

int main(void)
{
    const struct miot_done done = { 0, 1, 2, 3, 0 };
    struct miot_request request;
    miot_note("begins");
#define EACH(end)                                                 \
    request = miot_begin(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE); \
    recorded += end
    miot_cancel(NULL);
    EACH(miot_end(&request, NULL));
    EACH(miot_end(NULL, &done) + miot_end(NULL, NULL) + miot_end(&request, &done));
    EACH(miot_end_paths(&request, &done, NULL, NULL));
    EACH(miot_end_paths(&request, NULL, "path", NULL));
    EACH(miot_end_paths(NULL, NULL, NULL, NULL) + miot_end_paths(&request, &done, NULL, "second"));
    EACH(miot_end_ext(&request, &done, NULL));
    EACH(miot_end_ext(&request, NULL, NULL));
    EACH(miot_end_ext(NULL, NULL, NULL) + miot_end(&request, &done));
    /* Eight recorded events so far. */
#undef EACH
    request = miot_submit(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE);
    recorded += miot_complete(NULL, NULL, NULL) + miot_complete(&request, NULL, NULL);
    recorded += miot_record(MIOT_LAYER_CLIENT, MIOT_CLIENT_WRITE, miot_ticks(), miot_ticks(), NULL, NULL);
    recorded += miot_close(miot_open(NULL)) + miot_note(NULL);
    /* Twelve recorded events so far. */
    (void)miot_name(NULL);
    recorded += miot_debug(1, NULL) + miot_vdebug(1, 'D', NULL, NULL) + miot_vdebug(1, 'D', "x", NULL);
    vdebug(NULL);
    const char *nothing = NULL;
    recorded += miot_debug(1, "%s and %.3s", nothing, nothing);
    vdebug("%s", nothing);
    /* Fourteen recorded events so far. */
    struct miot_region region = miot_region_begin(NULL, NULL, MIOT_NONE);
    recorded += miot_region_end(NULL, 0) + miot_region_end(&region, 0);
    region = miot_region_begin(NULL, NULL, 0);
    miot_region_cancel(NULL);
    miot_region_cancel(&region);
    /* Fifteen recorded events in total. */
    printf("%d\n", recorded);
    return 0;
}
