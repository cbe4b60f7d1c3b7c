/* LTTng-UST: one operation is a tracepoint at its begin and one at its end, or only the latter.
 *
 *   lttng pair|end
 */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng_provider.h"

#include "worker.h"

static int pair;

static void setup(int argc, char **argv)
{
	if (argc != 2)
		exit(2);
	pair = strcmp(argv[1], "pair") == 0;
}

static void operations(uint64_t count)
{
	static _Thread_local uint64_t offset;
	static _Thread_local uint32_t request;
	for (uint64_t i = 0; i < count; i++, offset += 4096) {
		request++;
		if (pair)
			lttng_ust_tracepoint(miot_bench, begin, 7, 0, request, 0, 0, 7, offset, 4096, 0);
		lttng_ust_tracepoint(miot_bench, end, 7, 0, request, i, 40, 7, offset, 4096, 4096);
	}
}
