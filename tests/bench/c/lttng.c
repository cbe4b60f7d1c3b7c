/* LTTng-UST. One operation is a tracepoint at its start and one at its end, or only the latter.
 * Or operations are read from a file with 128 bytes each: eight numbers (operation and flags <<
 * 16, request, start, duration, handle, offset, length, result) and a path padded with zeros.
 *   lttng pair|end
 *   lttng replay FILE */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng_provider.h"

#include "worker.h"

struct record {
	uint64_t op_flags, request, begin, duration, handle, offset, length, result;
	char path[64];
};

static int pair;
static struct record *records;
static uint64_t number;

static void read_records(const char *path)
{
	FILE *file = fopen(path, "r");
	if (!file || fseek(file, 0, SEEK_END) != 0)
		exit(2);
	long bytes = ftell(file);
	rewind(file);
	number = (uint64_t)bytes / sizeof(struct record);
	records = malloc((size_t)bytes + 1);
	if (!records || number == 0 || fread(records, sizeof(struct record), number, file) != number)
		exit(2);
	fclose(file);
}

static void setup(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "replay") == 0)
		read_records(argv[2]);
	else if (argc != 2)
		exit(2);
	pair = strcmp(argv[1], "pair") == 0;
}

static void replay(uint64_t count)
{
	static _Thread_local uint64_t next;
	for (uint64_t i = 0; i < count; i++, next++) {
		const struct record *r = &records[next % number];
		uint16_t op = (uint16_t)r->op_flags, flags = (uint16_t)(r->op_flags >> 16);
		uint32_t request = (uint32_t)r->request;
		if (r->path[0])
			lttng_ust_tracepoint(miot_bench, path, op, flags, request, r->begin, r->duration, r->handle,
					     r->offset, r->length, (int64_t)r->result, r->path);
		else
			lttng_ust_tracepoint(miot_bench, end, op, flags, request, r->begin, r->duration, r->handle,
					     r->offset, r->length, (int64_t)r->result);
	}
}

static void operations(uint64_t count)
{
	static _Thread_local uint64_t offset;
	static _Thread_local uint32_t request;
	if (records) {
		replay(count);
		return;
	}
	for (uint64_t i = 0; i < count; i++, offset += 4096) {
		request++;
		if (pair)
			lttng_ust_tracepoint(miot_bench, begin, 7, 0, request, 0, 0, 7, offset, 4096, 0);
		lttng_ust_tracepoint(miot_bench, end, 7, 0, request, i, 40, 7, offset, 4096, 4096);
	}
}
