/* slices MODE FILE STEPS: programs whose view depends on the rank, or is set for each request.
 *
 *   columns    each rank has 20 bytes of each of 50 rows of 20 x RANKS bytes; all of them in one
 *              request, STEPS times
 *   halves     each rank has a block of 1000 bytes in each of STEPS strips, written by two requests
 *              at the individual pointer
 *   gaps       as columns, but rows have 30 bytes that belong to no rank
 *   offsets    each rank writes 1000 bytes of each of STEPS strips, by explicit offsets after a
 *              barrier
 *   views      the same through a view set for the strip (as PnetCDF and HDF5 do)
 *   variables  STEPS records of 3 variables of 8 rows of 40 x RANKS bytes at irregular distances;
 *              a view is set for each variable of each record
 *   uneven     alternating blocks of 100 and 30 bytes, STEPS times
 *   scattered  STEPS blocks of 10 bytes at irregular distances, in one request
 *   own        each rank writes a file in each step, and reads it back in every second step
 *   pairs      each step has a shared file with two requests and a barrier between them; the file
 *              is read back
 *   matrix     each rank has a part of a matrix of 64-bit numbers with 1000 rows, as a subarray */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DO(call) \
	do { \
		if ((call) != MPI_SUCCESS) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)

static int rank, ranks, steps;
static char buffer[1 << 20];

static MPI_File opened(const char *name, MPI_Comm comm)
{
	MPI_File f;
	DO(MPI_File_open(comm, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
	return f;
}

static void show(MPI_File f, MPI_Offset at, MPI_Datatype type)
{
	DO(MPI_Type_commit(&type));
	DO(MPI_File_set_view(f, at, MPI_BYTE, type, "native", MPI_INFO_NULL));
	DO(MPI_Type_free(&type));
}

/* A file type of `count` blocks at a stride, resized to `extent`. */
static MPI_Datatype rows(int count, int bytes, int stride, MPI_Aint extent)
{
	MPI_Datatype vector, type;
	DO(MPI_Type_vector(count, bytes, stride, MPI_BYTE, &vector));
	DO(MPI_Type_create_resized(vector, 0, extent, &type));
	DO(MPI_Type_free(&vector));
	return type;
}

static void put(MPI_File f, MPI_Offset at, int bytes)
{
	DO(MPI_File_write_at_all(f, at, buffer, bytes, MPI_BYTE, MPI_STATUS_IGNORE));
}

int main(int argc, char **argv)
{
	const char *mode = argv[1], *name = argv[2];
	char own[4096];
	MPI_File f;
	int step, i;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	steps = atoi(argv[3]);
	memset(buffer, 'a' + rank, sizeof buffer);
	if (!strcmp(mode, "own")) {
		for (step = 0; step < steps; step++) {
			snprintf(own, sizeof own, "%s.%d.%d", name, step, rank);
			f = opened(own, MPI_COMM_SELF);
			DO(MPI_File_write_at(f, 0, buffer, 3000, MPI_BYTE, MPI_STATUS_IGNORE));
			if (step % 2)
				DO(MPI_File_read_at(f, 0, buffer, 3000, MPI_BYTE, MPI_STATUS_IGNORE));
			DO(MPI_File_close(&f));
			MPI_Barrier(MPI_COMM_WORLD);
		}
		return MPI_Finalize();
	}
	if (!strcmp(mode, "pairs")) {
		for (step = 0; step < steps; step++) {
			snprintf(own, sizeof own, "%s.%d", name, step);
			f = opened(own, MPI_COMM_WORLD);
			for (i = 0; i < 2; i++) {
				put(f, (i * ranks + rank) * 1000, 1000);
				MPI_Barrier(MPI_COMM_WORLD);
			}
			DO(MPI_File_read_at_all(f, rank * 2000, buffer, 2000, MPI_BYTE, MPI_STATUS_IGNORE));
			DO(MPI_File_close(&f));
		}
		return MPI_Finalize();
	}
	f = opened(name, MPI_COMM_WORLD);
	if (!strcmp(mode, "columns") || !strcmp(mode, "gaps")) {
		int row = 20 * ranks + (mode[0] == 'g' ? 30 : 0);
		show(f, rank * 20, rows(50, 20, row, 50 * row));
		for (step = 0; step < steps; step++)
			put(f, step * 1000, 1000);
	} else if (!strcmp(mode, "halves")) {
		show(f, rank * 1000, rows(1, 1000, 1000, 1000 * ranks));
		for (step = 0; step < 2 * steps; step++)
			DO(MPI_File_write_all(f, buffer, 500, MPI_BYTE, MPI_STATUS_IGNORE));
	} else if (!strcmp(mode, "offsets")) {
		for (step = 0; step < steps; step++) {
			MPI_Barrier(MPI_COMM_WORLD);
			put(f, (MPI_Offset)(step * ranks + rank) * 1000, 1000);
		}
	} else if (!strcmp(mode, "views")) {
		for (step = 0; step < steps; step++) {
			show(f, (MPI_Offset)(step * ranks + rank) * 1000, rows(1, 1000, 1000, 1000 * ranks));
			put(f, 0, 1000);
		}
	} else if (!strcmp(mode, "variables")) {
		int row = 40 * ranks, variable = 8 * row;
		for (step = 0; step < steps; step++)
			for (i = 0; i < 3; i++) {
				int sizes[] = { 8, row }, parts[] = { 8, 40 }, starts[] = { 0, 40 * rank };
				MPI_Datatype type;
				DO(MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_BYTE, &type));
				show(f, (MPI_Offset)step * 4 * variable + i * variable + i * i * 50, type);
				put(f, 0, 320);
			}
	} else if (!strcmp(mode, "uneven")) {
		int lengths[] = { 100, 30 }, places[] = { 130 * rank, 130 * ranks + 30 * rank };
		MPI_Datatype blocks, type;
		DO(MPI_Type_indexed(2, lengths, places, MPI_BYTE, &blocks));
		DO(MPI_Type_create_resized(blocks, 0, 170 * ranks, &type));
		show(f, 0, type);
		for (step = 0; step < steps; step++)
			put(f, step * 130, 130);
	} else if (!strcmp(mode, "scattered")) {
		int *lengths = malloc(steps * sizeof *lengths), *places = malloc(steps * sizeof *places);
		MPI_Datatype type;
		for (i = 0; i < steps; i++) {
			lengths[i] = 10;
			places[i] = 1000 * i + i * i % 601;
		}
		DO(MPI_Type_indexed(steps, lengths, places, MPI_BYTE, &type));
		show(f, (MPI_Offset)rank * steps * 1000, type);
		put(f, 0, 10 * steps);
	} else if (!strcmp(mode, "matrix")) {
		int sizes[] = { 1000, 10 * ranks }, parts[] = { 1000, 10 }, starts[] = { 0, 10 * rank };
		MPI_Datatype type;
		DO(MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &type));
		show(f, 0, type);
		put(f, 0, 80000);
	}
	DO(MPI_File_close(&f));
	return MPI_Finalize();
}
