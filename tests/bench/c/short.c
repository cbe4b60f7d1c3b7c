/* A short program of a shell loop: a few I/O calls on one file, then exit.
 *   short FILE */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char buffer[512] = { 0 };
	struct stat facts;
	int fd;
	if (argc != 2 || (fd = open(argv[1], O_RDWR | O_CREAT, 0600)) < 0)
		return 2;
	if (pwrite(fd, buffer, sizeof buffer, 0) != sizeof buffer || pread(fd, buffer, sizeof buffer, 0) != sizeof buffer)
		return 2;
	if (close(fd) != 0 || stat(argv[1], &facts) != 0)
		return 2;
	return 0;
}
