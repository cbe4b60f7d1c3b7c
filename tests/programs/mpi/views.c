/* Writes through views of every kind of type, each rank to its own file, with ROMIO without data
 * sieving, so that the POSIX layer writes exactly the ranges of the view. */

#include <mpi.h>
#include <stdio.h>
#include <string.h>

#define DO(call) \
	if ((call) != MPI_SUCCESS) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)

int main(int argc, char **argv)
{
	int rank, n = 0;
	char name[4096];
	static short buffer[64];
	MPI_Datatype types[64], s = MPI_SHORT, padded;
	MPI_Info info;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	DO(MPI_Info_create(&info));
	DO(MPI_Info_set(info, "romio_ds_write", "disable"));
	DO(MPI_Type_create_resized(s, 0, 6, &padded));

	DO(MPI_Type_contiguous(5, s, &types[n++]));
	DO(MPI_Type_contiguous(5, padded, &types[n++]));
	DO(MPI_Type_vector(3, 2, 5, s, &types[n++]));
	DO(MPI_Type_vector(3, 2, 5, padded, &types[n++]));
	DO(MPI_Type_create_hvector(3, 2, 14, s, &types[n++]));
	DO(MPI_Type_indexed(3, (int[]){2, 1, 3}, (int[]){1, 4, 9}, s, &types[n++]));
	DO(MPI_Type_create_hindexed(3, (int[]){2, 1, 3}, (MPI_Aint[]){2, 8, 20}, s, &types[n++]));
	DO(MPI_Type_create_indexed_block(3, 2, (int[]){0, 3, 8}, s, &types[n++]));
	DO(MPI_Type_create_hindexed_block(3, 2, (MPI_Aint[]){0, 6, 20}, s, &types[n++]));
	DO(MPI_Type_create_struct(3, (int[]){1, 2, 1}, (MPI_Aint[]){4, 10, 40},
				  (MPI_Datatype[]){s, padded, types[2]}, &types[n++]));
	DO(MPI_Type_dup(types[2], &types[n++]));
	DO(MPI_Type_create_resized(types[2], 0, 100, &types[n++]));
	int sizes[3] = {4, 5, 6}, sub[3] = {2, 3, 4}, starts[3] = {1, 0, 2};
	DO(MPI_Type_create_subarray(3, sizes, sub, starts, MPI_ORDER_C, s, &types[n++]));
	DO(MPI_Type_create_subarray(3, sizes, sub, starts, MPI_ORDER_FORTRAN, s, &types[n++]));
	int block = MPI_DISTRIBUTE_BLOCK, cyclic = MPI_DISTRIBUTE_CYCLIC, none = MPI_DISTRIBUTE_DFLT_DARG;
	int dealt[][4] = {{block, cyclic, none, none}, {block, cyclic, 4, 2}, {cyclic, block, none, none},
			  {cyclic, block, 3, 5}, {cyclic, cyclic, 2, 3}};
	for (int d = 0; d < 5; d++)
		for (int order = 0; order < 2; order++)
			DO(MPI_Type_create_darray(4, rank % 4, 2, (int[]){7, 9}, dealt[d], dealt[d] + 2, (int[]){2, 2},
						  order ? MPI_ORDER_FORTRAN : MPI_ORDER_C, s, &types[n++]));
	DO(MPI_Type_create_darray(4, rank % 4, 2, (int[]){3, 9}, (int[]){MPI_DISTRIBUTE_NONE, MPI_DISTRIBUTE_CYCLIC},
				  (int[]){MPI_DISTRIBUTE_DFLT_DARG, 2}, (int[]){1, 4}, MPI_ORDER_C, s, &types[n++]));

	for (int i = 0; i < n; i++) {
		MPI_File f;
		snprintf(name, sizeof name, "%s.%d.%d", argv[1], rank, i);
		DO(MPI_Type_commit(&types[i]));
		DO(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_WRONLY, info, &f));
		DO(MPI_File_set_view(f, 3 * i + rank, s, types[i], "native", info));
		DO(MPI_File_write_at(f, 1, buffer, 17, s, MPI_STATUS_IGNORE));
		DO(MPI_File_write_at(f, 40, buffer, 3, MPI_INT, MPI_STATUS_IGNORE));
		DO(MPI_File_seek(f, 60, MPI_SEEK_SET));
		DO(MPI_File_write(f, buffer, 9, s, MPI_STATUS_IGNORE));
		DO(MPI_File_close(&f));
	}
	/* MPICH reports leaked types: a tracer that decodes types must free all of them. */
	for (int i = 0; i < n; i++)
		DO(MPI_Type_free(&types[i]));
	DO(MPI_Type_free(&padded));
	DO(MPI_Info_free(&info));
	DO(MPI_Finalize());
	return 0;
}
