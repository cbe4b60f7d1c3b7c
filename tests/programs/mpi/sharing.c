/* sharing MODE FILE COUNT BYTES: every rank writes COUNT blocks of BYTES bytes, interleaved with
 * those of the others. independent: each rank separately. collective: together. */

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define DO(call) \
	if ((call) != MPI_SUCCESS) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)

int main(int argc, char **argv)
{
	int rank, ranks;
	long count = atol(argv[3]);
	int bytes = atoi(argv[4]);
	char *buffer = calloc(1, bytes);
	MPI_File f;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	DO(MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &f));
	for (long i = 0; i < count; i++) {
		MPI_Offset offset = (i * ranks + rank) * (MPI_Offset)bytes;
		if (strcmp(argv[1], "collective"))
			DO(MPI_File_write_at(f, offset, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
		if (!strcmp(argv[1], "collective"))
			DO(MPI_File_write_at_all(f, offset, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
	}
	DO(MPI_File_close(&f));
	DO(MPI_Finalize());
	return 0;
}
