/* One tracepoint with the nine fields of an I/O event. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER miot_bench
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./lttng_provider.h"

#if !defined(LTTNG_PROVIDER_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define LTTNG_PROVIDER_H

#include <lttng/tracepoint.h>
#include <stdint.h>

#define IO_ARGS LTTNG_UST_TP_ARGS(uint16_t, op, uint16_t, flags, uint32_t, request, uint64_t, begin,	\
				  uint64_t, duration, uint64_t, handle, uint64_t, offset,		\
				  uint64_t, length, int64_t, result)
#define IO_FIELDS LTTNG_UST_TP_FIELDS(									\
	lttng_ust_field_integer(uint16_t, op, op)							\
	lttng_ust_field_integer(uint16_t, flags, flags)							\
	lttng_ust_field_integer(uint32_t, request, request)						\
	lttng_ust_field_integer(uint64_t, begin, begin)							\
	lttng_ust_field_integer(uint64_t, duration, duration)						\
	lttng_ust_field_integer(uint64_t, handle, handle)						\
	lttng_ust_field_integer(uint64_t, offset, offset)						\
	lttng_ust_field_integer(uint64_t, length, length)						\
	lttng_ust_field_integer(int64_t, result, result))

/* The same with a path. Ten arguments are the maximum. */
LTTNG_UST_TRACEPOINT_EVENT(miot_bench, path,
	LTTNG_UST_TP_ARGS(uint16_t, op, uint16_t, flags, uint32_t, request, uint64_t, begin, uint64_t, duration,
			  uint64_t, handle, uint64_t, offset, uint64_t, length, int64_t, result, const char *, path),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(uint16_t, op, op)
		lttng_ust_field_integer(uint16_t, flags, flags)
		lttng_ust_field_integer(uint32_t, request, request)
		lttng_ust_field_integer(uint64_t, begin, begin)
		lttng_ust_field_integer(uint64_t, duration, duration)
		lttng_ust_field_integer(uint64_t, handle, handle)
		lttng_ust_field_integer(uint64_t, offset, offset)
		lttng_ust_field_integer(uint64_t, length, length)
		lttng_ust_field_integer(int64_t, result, result)
		lttng_ust_field_string(path, path)))

LTTNG_UST_TRACEPOINT_EVENT(miot_bench, begin, IO_ARGS, IO_FIELDS)
LTTNG_UST_TRACEPOINT_EVENT(miot_bench, end, IO_ARGS, IO_FIELDS)

#endif

#include <lttng/tracepoint-event.h>
