/* btio full|simple FILE N DUMPS: the I/O of NAS BT-IO on a square number of ranks, with N x N x
 * N cells of five doubles.
 *
 * The array is distributed by diagonal multi-partitioning: of the q x q x q blocks, q =
 * sqrt(ranks), each rank has q, no two of them in the same plane. Between dumps ranks exchange
 * faces and a norm. At the end the dumps are read back. full: a file type of all blocks of a
 * rank, collective. simple: a request for each row of cells, independent. */

#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS 5
#define CELL (FIELDS * sizeof(double))
/* One in this number of values is compared after reading, so that a phase of reads consists of
 * reads. A prime, so that the value may be anywhere in a row. */
#define LOOKED_AT 97
#define DO(call) \
	do { \
		if ((call) != MPI_SUCCESS) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)

static int rank, ranks, q, n, side;
static double *data;

/* Start of the c-th block of this rank, in cells: z, y, x. */
static void block(int c, int at[3])
{
	at[0] = c * side;
	at[1] = ((rank / q - c) % q + q) % q * side;
	at[2] = (rank % q + c) % q * side;
}

static MPI_Datatype blocks(void)
{
	MPI_Datatype element, *parts = calloc(q, sizeof *parts), all;
	int c, *ones = calloc(q, sizeof *ones);
	MPI_Aint *zeros = calloc(q, sizeof *zeros);

	DO(MPI_Type_contiguous(FIELDS, MPI_DOUBLE, &element));
	for (c = 0; c < q; c++) {
		int whole[3] = { n, n, n }, part[3] = { side, side, side }, at[3];
		block(c, at);
		DO(MPI_Type_create_subarray(3, whole, part, at, MPI_ORDER_C, element, &parts[c]));
		ones[c] = 1;
	}
	DO(MPI_Type_create_struct(q, ones, zeros, parts, &all));
	DO(MPI_Type_commit(&all));
	free(parts);
	free(ones);
	free(zeros);
	return all;
}

/* Computing and communication between dumps. */
static void compute(void)
{
	double out = rank, in, sum;

	DO(MPI_Sendrecv(&out, 1, MPI_DOUBLE, (rank + 1) % ranks, 0, &in, 1, MPI_DOUBLE, (rank + ranks - 1) % ranks, 0,
			MPI_COMM_WORLD, MPI_STATUS_IGNORE));
	DO(MPI_Allreduce(&in, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
}

static void simple(MPI_File f, int dump, int reads)
{
	long per_row = side;
	double *row = data;
	int c, y, z;

	for (c = 0; c < q; c++) {
		int at[3];
		block(c, at);
		for (z = 0; z < side; z++)
			for (y = 0; y < side; y++, row += per_row * FIELDS) {
				MPI_Offset cell = at[2] + (MPI_Offset)n * (at[1] + y + (MPI_Offset)n * (at[0] + z + (MPI_Offset)n * dump));
				if (reads)
					DO(MPI_File_read_at(f, cell * FIELDS, row, side * FIELDS, MPI_DOUBLE, MPI_STATUS_IGNORE));
				else
					DO(MPI_File_write_at(f, cell * FIELDS, row, side * FIELDS, MPI_DOUBLE, MPI_STATUS_IGNORE));
			}
	}
}

int main(int argc, char **argv)
{
	int full = !strcmp(argv[1], "full"), dumps = atoi(argv[4]), dump, i;
	long cells;
	MPI_File f;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	q = (int)lround(sqrt(ranks));
	n = atoi(argv[3]);
	side = n / q;
	cells = (long)q * side * side * side;
	data = malloc(cells * CELL);
	DO(MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
	if (full) {
		MPI_Datatype element;
		DO(MPI_Type_contiguous(FIELDS, MPI_DOUBLE, &element));
		DO(MPI_Type_commit(&element));
		DO(MPI_File_set_view(f, 0, element, blocks(), "native", MPI_INFO_NULL));
	} else {
		DO(MPI_File_set_view(f, 0, MPI_DOUBLE, MPI_DOUBLE, "native", MPI_INFO_NULL));
	}
	for (dump = 0; dump < dumps; dump++) {
		for (i = 0; i < cells * FIELDS; i++)
			data[i] = rank + dump;
		compute();
		if (full)
			DO(MPI_File_write_at_all(f, cells * dump, data, cells * FIELDS, MPI_DOUBLE, MPI_STATUS_IGNORE));
		else
			simple(f, dump, 0);
	}
	compute();
	for (dump = 0; dump < dumps; dump++) {
		for (i = 0; i < cells * FIELDS; i += LOOKED_AT)
			data[i] = -1;
		if (full)
			DO(MPI_File_read_at_all(f, cells * dump, data, cells * FIELDS, MPI_DOUBLE, MPI_STATUS_IGNORE));
		else
			simple(f, dump, 1);
		for (i = 0; i < cells * FIELDS; i += LOOKED_AT)
			if (data[i] != rank + dump)
				MPI_Abort(MPI_COMM_WORLD, __LINE__);
	}
	DO(MPI_File_close(&f));
	DO(MPI_Finalize());
	return 0;
}
