#include <miot.h>

int work(void)
{
    struct miot_request request = miot_begin(MIOT_LAYER_CLIENT, MIOT_CLIENT_READ);
    struct miot_done done = { 0, 1, 1, 1, 0 };
    return miot_end(&request, &done);
}
