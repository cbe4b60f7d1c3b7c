/* netcdf FILE STEPS SIDE: a variable of doubles and one of floats, each a cube of SIDE^3 cells
 * in every record. Each of q x q ranks has one column of it. PnetCDF writes a record of each
 * variable in every step, and reads the doubles back. */

#include <mpi.h>
#include <pnetcdf.h>
#include <stdlib.h>

#define DO(call) \
	do { \
		if ((call) != NC_NOERR) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)

int main(int argc, char **argv)
{
	int rank, ranks, q, steps = atoi(argv[2]), side = atoi(argv[3]), step, file, doubles, floats, dims[4];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (q = 1; q * q < ranks; q++)
		;
	DO(ncmpi_create(MPI_COMM_WORLD, argv[1], NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
	DO(ncmpi_def_dim(file, "time", NC_UNLIMITED, &dims[0]));
	DO(ncmpi_def_dim(file, "z", side, &dims[1]));
	DO(ncmpi_def_dim(file, "y", side, &dims[2]));
	DO(ncmpi_def_dim(file, "x", side, &dims[3]));
	DO(ncmpi_def_var(file, "doubles", NC_DOUBLE, 4, dims, &doubles));
	DO(ncmpi_def_var(file, "floats", NC_FLOAT, 4, dims, &floats));
	DO(ncmpi_enddef(file));
	MPI_Offset part = side / q, starts[] = { 0, 0, rank / q * part, rank % q * part };
	MPI_Offset counts[] = { 1, side, part, part };
	double *more = calloc(side * part * part, sizeof *more);
	float *less = calloc(side * part * part, sizeof *less);
	for (step = 0; step < steps; step++) {
		starts[0] = step;
		DO(ncmpi_put_vara_double_all(file, doubles, starts, counts, more));
		DO(ncmpi_put_vara_float_all(file, floats, starts, counts, less));
	}
	for (step = 0; step < steps; step++) {
		starts[0] = step;
		DO(ncmpi_get_vara_double_all(file, doubles, starts, counts, more));
	}
	DO(ncmpi_close(file));
	return MPI_Finalize();
}
