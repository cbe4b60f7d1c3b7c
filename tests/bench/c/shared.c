/* The MPI-IO benchmark that `miot bench` is compared with: all ranks write or read a shared file
 * between two barriers.
 *   shared write|read strided|segmented independent|collective FILE BLOCK COUNT REPETITIONS
 *
 * Prints MiB (2^20 bytes) per second, one line for each repetition, which uses a new file. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call) \
	do { \
		if ((call) != MPI_SUCCESS) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)

static int rank, ranks, reads, strided, collective;
static long block, count;
static char *buffer;

static void accesses(MPI_File file, int write)
{
	for (long i = 0; i < count; i++) {
		MPI_Offset at = strided ? (i * ranks + rank) * block : (rank * count + i) * block;
		if (write && collective)
			DO(MPI_File_write_at_all(file, at, buffer, block, MPI_BYTE, MPI_STATUS_IGNORE));
		else if (write)
			DO(MPI_File_write_at(file, at, buffer, block, MPI_BYTE, MPI_STATUS_IGNORE));
		else if (collective)
			DO(MPI_File_read_at_all(file, at, buffer, block, MPI_BYTE, MPI_STATUS_IGNORE));
		else
			DO(MPI_File_read_at(file, at, buffer, block, MPI_BYTE, MPI_STATUS_IGNORE));
	}
}

int main(int argc, char **argv)
{
	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	reads = !strcmp(argv[1], "read");
	strided = !strcmp(argv[2], "strided");
	collective = !strcmp(argv[3], "collective");
	block = atol(argv[5]);
	count = atol(argv[6]);
	/* At a page, like the buffers of `miot bench`: blocks are whole pages. */
	buffer = aligned_alloc(4096, block);
	memset(buffer, rank + 1, block);
	for (int repetition = 0; repetition < atoi(argv[7]); repetition++) {
		double times[2], first, last;
		MPI_File file;
		DO(MPI_File_open(MPI_COMM_WORLD, argv[4], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
		if (reads)
			accesses(file, 1);
		DO(MPI_Barrier(MPI_COMM_WORLD));
		times[0] = MPI_Wtime();
		accesses(file, !reads);
		DO(MPI_Barrier(MPI_COMM_WORLD));
		times[1] = MPI_Wtime();
		DO(MPI_File_close(&file));
		DO(MPI_Reduce(&times[0], &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD));
		DO(MPI_Reduce(&times[1], &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD));
		if (rank == 0) {
			printf("%.3f\n", (double)ranks * count * block / 1048576 / (last - first));
			fflush(stdout);
			DO(MPI_File_delete(argv[4], MPI_INFO_NULL));
		}
		DO(MPI_Barrier(MPI_COMM_WORLD));
	}
	MPI_Finalize();
	return 0;
}
