/* The program with the hook: one call in a loop, on a file in the page cache.
 *   calls pread FILE   reads 4 KiB at a time
 *   calls stat FILE    gets the attributes of the file by its path
 *   calls open FILE    opens the file by its path and closes it */
#include "worker.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 1024 };

static enum { READ, STAT, OPEN } call;
static int fd;
static const char *path;

static void setup(int argc, char **argv)
{
	static char block[BLOCK];
	if (argc != 3 || (fd = open(argv[2], O_RDWR | O_CREAT, 0600)) < 0) {
		perror("calls: the file");
		exit(2);
	}
	call = strcmp(argv[1], "stat") == 0 ? STAT : strcmp(argv[1], "open") == 0 ? OPEN : READ;
	path = argv[2];
	for (int i = 0; i < BLOCKS; i++)
		if (pwrite(fd, block, BLOCK, (off_t)i * BLOCK) != BLOCK)
			exit(2);
}

static void operations(uint64_t count)
{
	/* Aligned, so that a preloaded library with thread-local storage does not move it: where it lies
	 * in its page changes the time of the copy by up to a quarter. */
	static _Thread_local _Alignas(BLOCK) char buffer[BLOCK];
	struct stat facts;
	for (uint64_t i = 0; i < count; i++) {
		int failed;
		switch (call) {
		case STAT:
			failed = stat(path, &facts) != 0;
			break;
		case OPEN:
			failed = close(open(path, O_RDONLY)) != 0;
			break;
		default:
			failed = pread(fd, buffer, BLOCK, (off_t)(i % BLOCKS) * BLOCK) != BLOCK;
		}
		if (failed)
			exit(2);
	}
}
