/* pattern MODE PATH [NUMBER…]: I/O of a known pattern, and no other I/O. Modes with several
 * ranks take the rank from MIOT_RANK. The numbers come from the test, which derives the expected
 * figures from them. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char buffer[1 << 20];
static long n[8];

static void check(int ok)
{
	if (!ok) {
		/* No stdio, because it would be in the trace. */
		_exit(errno ? errno : 255);
	}
}

static int opened(const char *path, int flags)
{
	int fd = open(path, flags, 0666);
	check(fd >= 0);
	return fd;
}

static void written(int fd, long bytes, long offset)
{
	check(pwrite(fd, buffer, bytes, offset) == bytes);
}

static void seen(int fd, long bytes, long offset)
{
	check(pread(fd, buffer, bytes, offset) == bytes);
}

static const char *numbered(const char *path, long number)
{
	static char name[4096];
	size_t length = strlen(path);
	memcpy(name, path, length);
	for (int digit = 5; digit >= 0; digit--, number /= 10)
		name[length + digit] = '0' + number % 10;
	name[length + 6] = 0;
	return name;
}

/* Waits until `ms` ms after the start: the next burst is due regardless of the duration of the
 * last one. */
static void due(struct timespec start, long ms)
{
	start.tv_nsec += ms % 1000 * 1000000;
	start.tv_sec += ms / 1000 + start.tv_nsec / 1000000000;
	start.tv_nsec %= 1000000000;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &start, NULL) == EINTR)
		;
}

int main(int argc, char **argv)
{
	const char *mode = argv[1], *path = argv[2];
	long rank = getenv("MIOT_RANK") ? atol(getenv("MIOT_RANK")) : 0;
	int fd;
	for (int i = 3; i < argc && i < 11; i++)
		n[i - 3] = atol(argv[i]);
#define IS(name) (!strcmp(mode, name))

	if (IS("bursts")) { /* BURSTS WRITES BYTES MS: WRITES writes every MS ms */
		struct timespec start;
		clock_gettime(CLOCK_MONOTONIC, &start);
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long burst = 0; burst < n[0]; burst++) {
			due(start, burst * n[3]);
			for (long i = 0; i < n[1]; i++)
				written(fd, n[2], (burst * n[1] + i) * n[2]);
		}
	} else if (IS("strided")) { /* COUNT BYTES STRIDE START: at START, START + STRIDE, … */
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++)
			written(fd, n[1], n[3] + i * n[2]);
	} else if (IS("nested")) {
		/* OUTER INNER BYTES STRIDE FAR: INNER at STRIDE, the next INNER after FAR */
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++)
			for (long j = 0; j < n[1]; j++)
				written(fd, n[2], i * n[4] + j * n[3]);
	} else if (IS("growing")) { /* COUNT BYTES: each gap a byte larger than the one before */
		long offset = 0;
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++) {
			written(fd, n[1], offset);
			offset += n[1] + i + 1;
		}
	} else if (IS("random")) { /* COUNT BYTES FACTOR: block i * FACTOR mod COUNT */
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++)
			written(fd, n[1], i * n[2] % n[0] * n[1]);
	} else if (IS("own")) { /* COUNT BYTES: each rank has its own file */
		fd = opened(numbered(path, rank), O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++)
			written(fd, n[1], i * n[1]);
	} else if (IS("shared")) { /* COUNT BYTES: each rank has a part of one file */
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++)
			written(fd, n[1], (rank * n[0] + i) * n[1]);
	} else if (IS("some")) { /* COUNT BYTES RANKS: RANKS ranks share a file */
		fd = opened(numbered(path, rank / n[2]), O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++)
			written(fd, n[1], (rank % n[2] * n[0] + i) * n[1]);
	} else if (IS("one")) { /* COUNT BYTES RANK: RANK alone, the others do nothing */
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; rank == n[2] && i < n[0]; i++)
			written(fd, n[1], i * n[1]);
	} else if (IS("half")) { /* COUNT BYTES: equal amounts to a shared and to an own file */
		int own = opened(numbered(path, rank), O_CREAT | O_WRONLY);
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++) {
			written(own, n[1], i * n[1]);
			written(fd, n[1], (rank * n[0] + i) * n[1]);
		}
	} else if (IS("reads")) { /* TIMES COUNT BYTES START: the same bytes, TIMES times */
		fd = opened(path, O_RDONLY);
		for (long time = 0; time < n[0]; time++)
			for (long i = 0; i < n[1]; i++)
				seen(fd, n[2], n[3] + i * n[2]);
	} else if (IS("part")) { /* COUNT BYTES: each rank reads a part of one file */
		fd = opened(path, O_RDONLY);
		for (long i = 0; i < n[0]; i++)
			seen(fd, n[1], (rank * n[0] + i) * n[1]);
	} else if (IS("writes")) { /* TIMES COUNT BYTES: the same bytes, TIMES times */
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long time = 0; time < n[0]; time++)
			for (long i = 0; i < n[1]; i++)
				written(fd, n[2], i * n[2]);
	} else if (IS("truncated")) { /* TIMES COUNT BYTES: the same, with truncation before */
		for (long time = 0; time < n[0]; time++) {
			fd = opened(path, O_CREAT | O_WRONLY | O_TRUNC);
			for (long i = 0; i < n[1]; i++)
				written(fd, n[2], i * n[2]);
			check(close(fd) == 0);
		}
	} else if (IS("seeks")) { /* COUNT BYTES: a seek before each read */
		fd = opened(path, O_RDONLY);
		for (long i = 0; i < n[0]; i++) {
			check(lseek(fd, i * n[1], SEEK_SET) == i * n[1]);
			check(read(fd, buffer, n[1]) == n[1]);
		}
	} else if (IS("positions")) { /* COUNT BYTES: a question for the position before each read */
		fd = opened(path, O_RDONLY);
		for (long i = 0; i < n[0]; i++) {
			check(lseek(fd, 0, SEEK_CUR) == i * n[1]);
			check(read(fd, buffer, n[1]) == n[1]);
		}
	} else if (IS("opens")) { /* COUNT: the same file */
		for (long i = 0; i < n[0]; i++)
			check(close(opened(path, O_RDONLY)) == 0);
	} else if (IS("stats")) { /* COUNT SAME: of missing files, or of an existing one */
		struct stat status;
		for (long i = 0; i < n[0]; i++)
			check(!stat(n[1] ? path : numbered(path, i), &status) == !!n[1]);
	} else if (IS("files")) { /* COUNT BYTES */
		for (long i = 0; i < n[0]; i++) {
			fd = opened(numbered(path, i), O_CREAT | O_WRONLY);
			written(fd, n[1], 0);
			check(close(fd) == 0);
		}
	} else if (IS("syncs")) { /* COUNT BYTES EVERY: a sync after every EVERY writes */
		fd = opened(path, O_CREAT | O_WRONLY);
		for (long i = 0; i < n[0]; i++) {
			written(fd, n[1], i * n[1]);
			if (i % n[2] == n[2] - 1)
				check(fdatasync(fd) == 0);
		}
	} else if (IS("late")) {
		/* FIFO in PATH.fifo; ranks from RANK on wait for its writer; then all write BYTES */
		static char fifo[4096];
		strcpy(fifo, path);
		strcat(fifo, ".fifo");
		if (rank >= n[0])
			opened(fifo, O_RDONLY);
		fd = opened(numbered(path, rank), O_CREAT | O_WRONLY);
		written(fd, n[1], 0);
	} else {
		_exit(254);
	}
	return 0;
}
