/* Makes one request in each of the given number of layers. */
#include <miot.h>
#include <stdlib.h>

int main(int count, char **words)
{
    struct miot_done done = {0, 1, 2, 2, 0};
    int layers = count > 1 ? atoi(words[1]) : 1;

    for (int layer = 0; layer < layers; layer++) {
        struct miot_request request = miot_begin(layer, 1);

        miot_end(&request, &done);
    }
    return 0;
}
