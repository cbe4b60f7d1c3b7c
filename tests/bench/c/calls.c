/* The program with the hook: one call in a loop, on a file in the page cache.
 *   calls pread FILE   reads 4 KiB at a time
 *   calls stat FILE    gets the attributes of the file by its path */
#include "worker.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 1024 };

static int fd, by_path;
static const char *path;

static void setup(int argc, char **argv)
{
	static char block[BLOCK];
	if (argc != 3 || (fd = open(argv[2], O_RDWR | O_CREAT, 0600)) < 0) {
		perror("calls: the file");
		exit(2);
	}
	by_path = strcmp(argv[1], "stat") == 0;
	path = argv[2];
	for (int i = 0; i < BLOCKS; i++)
		if (pwrite(fd, block, BLOCK, (off_t)i * BLOCK) != BLOCK)
			exit(2);
}

static void operations(uint64_t count)
{
	static _Thread_local char buffer[BLOCK];
	struct stat facts;
	for (uint64_t i = 0; i < count; i++)
		if (by_path ? stat(path, &facts) != 0
			    : pread(fd, buffer, BLOCK, (off_t)(i % BLOCKS) * BLOCK) != BLOCK)
			exit(2);
}
