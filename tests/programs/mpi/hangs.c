/* A write through MPI-IO whose POSIX request never ends: `hangs FILE`. */

#include <mpi.h>
#include <sys/types.h>
#include <unistd.h>

static ssize_t hang(void)
{
	for (;;)
		pause();
}

/* The MPI library finds these symbols in the program first. */
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
	return hang();
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t offset)
{
	return hang();
}

ssize_t pwritev(int fd, const void *pieces, int count, off_t offset)
{
	return hang();
}

int main(int argc, char **argv)
{
	static char bytes[1000];
	MPI_File file;

	MPI_Init(&argc, &argv);
	MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
	MPI_File_write_at(file, 4096, bytes, sizeof bytes, MPI_BYTE, MPI_STATUS_IGNORE);
	return 0;
}
