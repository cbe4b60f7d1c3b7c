/* Regions: nested, canceled, failed, and one that another thread ends. */
#include <fcntl.h>
#include <miot.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *end(void *region)
{
    return miot_region_end(region, 0) ? region : NULL;
}

int main(void)
{
    struct miot_region epoch = miot_region_begin("epoch", "loader=1,epoch=", 3);
    struct miot_region fetch = miot_region_begin("fetch", NULL, MIOT_NONE);
    int file = open("/etc/passwd", O_RDONLY);
    char byte;
    int recorded = read(file, &byte, 1) == 1;
    recorded += miot_region_end(&fetch, 0);
    struct miot_region canceled = miot_region_begin("canceled", NULL, 7);
    miot_region_cancel(&canceled);
    struct miot_region failed = miot_region_begin("failed", "kind=compute", MIOT_NONE);
    recorded += miot_region_end(&failed, -5);
    close(file);
    pthread_t thread;
    void *ended = NULL;
    pthread_create(&thread, NULL, end, &epoch);
    pthread_join(thread, &ended);
    printf("%d %d\n", recorded, ended != NULL);
    return 0;
}
