/* The program that is hooked: reads 4 KiB at a time from a file in the page cache.
 *
 *   pread FILE
 */
#include "worker.h"

#include <fcntl.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 1024 };

static int fd;

static void setup(int argc, char **argv)
{
	static char block[BLOCK];
	if (argc != 2 || (fd = open(argv[1], O_RDWR | O_CREAT, 0600)) < 0) {
		perror("pread: the file");
		exit(2);
	}
	for (int i = 0; i < BLOCKS; i++)
		if (pwrite(fd, block, BLOCK, (off_t)i * BLOCK) != BLOCK)
			exit(2);
}

static void operations(uint64_t count)
{
	static _Thread_local char buffer[BLOCK];
	for (uint64_t i = 0; i < count; i++)
		if (pread(fd, buffer, BLOCK, (off_t)(i % BLOCKS) * BLOCK) != BLOCK)
			exit(2);
}
