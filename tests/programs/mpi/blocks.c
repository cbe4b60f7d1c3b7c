/* The ranks write BLOCKS blocks of BLOCK bytes to a shared file, block by block in turn. Then
 * rank 0 reads the whole file. */

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 65536
#define BLOCKS 16
#define DO(call) \
	if ((call) != MPI_SUCCESS) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)

int main(int argc, char **argv)
{
	static char block[BLOCK];
	int rank, ranks;
	MPI_File f;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	memset(block, 'a' + rank, BLOCK);
	DO(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
	for (long i = 0; i < BLOCKS; i++)
		DO(MPI_File_write_at(f, (i * ranks + rank) * BLOCK, block, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE));
	MPI_Barrier(MPI_COMM_WORLD);
	for (long i = 0; rank == 0 && i < BLOCKS * ranks; i++)
		DO(MPI_File_read_at(f, i * BLOCK, block, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE));
	DO(MPI_File_close(&f));
	return MPI_Finalize();
}
