/* Formatted logging in the way of the debug log of PVFS clients. For each line: get the time of
 * day, break it down and format it, write a prefix, format the message into a buffer, one
 * fprintf and one fflush. An operation logs one line at its end.
 *   formatted FILE */
#include "worker.h"

#include <stdarg.h>
#include <sys/time.h>

static FILE *log_file;
static volatile uint64_t mask = 1u << 26, enabled = 1;

__attribute__((noinline, format(printf, 2, 3)))
static void log_line(char type, const char *format, ...)
{
	char line[5120];
	struct timeval now;
	struct tm broken_down;
	va_list args;

	gettimeofday(&now, NULL);
	time_t seconds = now.tv_sec;
	broken_down = *localtime(&seconds);
	size_t at = (size_t)snprintf(line, sizeof line, "[%c ", type);
	at += strftime(line + at, sizeof line - at, "%H:%M:%S", &broken_down);
	at += (size_t)snprintf(line + at, sizeof line - at, ".%06ld] ", (long)now.tv_usec);
	va_start(args, format);
	vsnprintf(line + at, sizeof line - at, format, args);
	va_end(args);
	fprintf(log_file, "%s", line);
	fflush(log_file);
}

static void setup(int argc, char **argv)
{
	if (argc != 2 || !(log_file = fopen(argv[1], "w"))) {
		perror("formatted: the log file");
		exit(2);
	}
}

static void operations(uint64_t count)
{
	static _Thread_local uint64_t offset;
	for (uint64_t i = 0; i < count; i++, offset += 4096)
		if (enabled && (mask & (1u << 26)))
			log_line('D', "client_io: op=%s handle=%llu offset=%llu length=%llu result=%lld\n", "read",
				 7ull, (unsigned long long)offset, 4096ull, 4096ll);
}
