/* patterns MODE FILE: every rank writes ROWS blocks of BLOCK bytes, interleaved with those of
 * the others. direct: independent, exactly the ranges of the view. sieved: independent, ROMIO
 * may read and write the gaps. collective: two-phase, one aggregator. */

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 64
#define BLOCK 128
#define DO(call) \
	if ((call) != MPI_SUCCESS) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)

int main(int argc, char **argv)
{
	int rank, ranks;
	static char buffer[ROWS * BLOCK];
	const char *mode = argv[1];
	MPI_File f;
	MPI_Info info;
	MPI_Datatype rows;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	memset(buffer, 'a' + rank, sizeof buffer);
	DO(MPI_Info_create(&info));
	DO(MPI_Info_set(info, "romio_ds_write", strcmp(mode, "sieved") ? "disable" : "enable"));
	DO(MPI_Info_set(info, "romio_cb_write", strcmp(mode, "collective") ? "disable" : "enable"));
	DO(MPI_Info_set(info, "cb_nodes", "1"));
	DO(MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_RDWR, info, &f));
	DO(MPI_Type_vector(ROWS, BLOCK, BLOCK * ranks, MPI_CHAR, &rows));
	DO(MPI_Type_commit(&rows));
	DO(MPI_File_set_view(f, BLOCK * rank, MPI_CHAR, rows, "native", info));
	if (strcmp(mode, "collective"))
		DO(MPI_File_write(f, buffer, sizeof buffer, MPI_CHAR, MPI_STATUS_IGNORE));
	if (!strcmp(mode, "collective"))
		DO(MPI_File_write_all(f, buffer, sizeof buffer, MPI_CHAR, MPI_STATUS_IGNORE));
	DO(MPI_File_close(&f));
	DO(MPI_Finalize());
	return 0;
}
