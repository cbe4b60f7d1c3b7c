/* checkpoint FILE STEPS REQUESTS: in each step the whole array of each rank changes and is
 * written to FILE in REQUESTS requests of 1 MiB, each rank its part of the checkpoint. At the
 * end the checkpoints are read back, the last first. */

#include <mpi.h>
#include <stdlib.h>

#define REQUEST (1 << 20)
#define VALUES (REQUEST / sizeof(double))
#define DO(call) \
	do { \
		if ((call) != MPI_SUCCESS) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)

int main(int argc, char **argv)
{
	int rank, ranks, steps = atoi(argv[2]), requests = atoi(argv[3]), step, i;
	long values = requests * (long)VALUES, v;
	double *data = malloc(values * sizeof *data), norm, sum;
	MPI_File f;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (v = 0; v < values; v++)
		data[v] = rank;
	DO(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
	for (step = 0; step < steps; step++) {
		for (norm = 0, v = 0; v < values; v++)
			norm += data[v] = data[v] / 2 + step;
		MPI_Allreduce(&norm, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		for (i = 0; i < requests; i++)
			DO(MPI_File_write_at(f, (((MPI_Offset)step * ranks + rank) * requests + i) * REQUEST, data + i * VALUES,
					VALUES, MPI_DOUBLE, MPI_STATUS_IGNORE));
	}
	for (step = steps - 1; step >= 0; step--) {
		MPI_Barrier(MPI_COMM_WORLD);
		for (i = 0; i < requests; i++)
			DO(MPI_File_read_at(f, (((MPI_Offset)step * ranks + rank) * requests + i) * REQUEST, data + i * VALUES,
					VALUES, MPI_DOUBLE, MPI_STATUS_IGNORE));
	}
	DO(MPI_File_close(&f));
	DO(MPI_Finalize());
	return 0;
}
