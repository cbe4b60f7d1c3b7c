/* shares DIRECTORY: rank r writes 3 (r + 1) times 1000 bytes to its own file, and (r + 1) times
 * 1000 bytes to its part of a file that all ranks open. Rank 0 writes one byte to a third file.
 * All ranks but the last open a fourth file and write 10 bytes. */

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#define DO(call) \
	if (!(call)) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)

static const char *directory;

static int opened(const char *name)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%s", directory, name);
	int fd = open(path, O_WRONLY | O_CREAT, 0644);
	DO(fd >= 0);
	return fd;
}

int main(int argc, char **argv)
{
	static char buffer[1000];
	char own[32];
	int rank, ranks, fd;

	DO(MPI_Init(&argc, &argv) == MPI_SUCCESS);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	directory = argv[1];

	snprintf(own, sizeof own, "own.%d", rank);
	fd = opened(own);
	for (int i = 0; i < 3 * (rank + 1); i++)
		DO(write(fd, buffer, 1000) == 1000);
	close(fd);

	fd = opened("shared");
	for (int i = 0; i <= rank; i++)
		DO(pwrite(fd, buffer, 1000, 100000 * rank + 1000 * i) == 1000);
	close(fd);

	if (rank == 0) {
		fd = opened("first");
		DO(write(fd, buffer, 1) == 1);
		close(fd);
	}
	if (rank < ranks - 1) {
		fd = opened("most");
		DO(pwrite(fd, buffer, 10, 10 * rank) == 10);
		close(fd);
	}
	MPI_Finalize();
	return 0;
}
