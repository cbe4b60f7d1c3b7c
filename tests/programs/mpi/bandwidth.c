/* bandwidth FILES PASSES DIRECTORY: each rank writes 64 MiB in transfers of 4 MiB, PASSES times.
 * Rank 0 prints the bandwidth in MiB/s by IOR's rule: bytes / (last close - first open), by
 * MPI_Wtime. FILES: own (one file per rank), shared (one file, by POSIX calls), mpi (one file,
 * by MPI-IO). */

#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRANSFER (4 << 20)
#define COUNT 16
#define DO(call) \
	do { \
		if (!(call)) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)

int main(int argc, char **argv)
{
	int rank, ranks, fd = -1;
	char path[4096];
	double begin, end, first, last;
	MPI_File file;

	DO(MPI_Init(&argc, &argv) == MPI_SUCCESS);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int own = !strcmp(argv[1], "own"), mpi = !strcmp(argv[1], "mpi"), passes = atoi(argv[2]);
	snprintf(path, sizeof path, "%s/data.%d", argv[3], own ? rank : -1);
	char *buffer = aligned_alloc(4096, TRANSFER);
	memset(buffer, 'a' + rank, TRANSFER);
	long base = own ? 0 : (long)rank * COUNT * TRANSFER;

	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime();
	if (mpi)
		DO(MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file) == MPI_SUCCESS);
	if (!mpi)
		DO((fd = open(path, O_WRONLY | O_CREAT, 0644)) >= 0);
	for (int pass = 0; pass < passes; pass++)
		for (long at = 0; at < COUNT; at++)
			if (mpi)
				DO(MPI_File_write_at(file, base + at * TRANSFER, buffer, TRANSFER, MPI_CHAR, MPI_STATUS_IGNORE) == MPI_SUCCESS);
			else
				DO(pwrite(fd, buffer, TRANSFER, base + at * TRANSFER) == TRANSFER);
	if (mpi)
		DO(MPI_File_close(&file) == MPI_SUCCESS);
	if (!mpi)
		DO(close(fd) == 0);
	end = MPI_Wtime();

	MPI_Reduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
	MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%.6f MiB/s in %.6f s\n", (double)ranks * passes * COUNT * 4 / (last - first), last - first);
	MPI_Finalize();
	return 0;
}
