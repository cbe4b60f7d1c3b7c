/* Every function of MPI-IO in a fixed order, two integers at a time. tests/tests/mpi/every.rs
 * has the expected events, and every.F90 makes the same requests. */

#include <mpi.h>
#include <stdlib.h>

#define DO(call) \
	if ((call) != MPI_SUCCESS) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)
#define WAIT DO(MPI_Wait(&request, MPI_STATUS_IGNORE))

int main(int argc, char **argv)
{
	int rank, ranks, amode, flag, b[2] = {1, 2};
	char datarep[MPI_MAX_DATAREP_STRING];
	MPI_File f;
	MPI_Group group;
	MPI_Info info, info2;
	MPI_Offset offset;
	MPI_Aint extent;
	MPI_Datatype one, type, etype, filetype;
	MPI_Request request;
	MPI_Status status;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	DO(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
	DO(MPI_File_get_amode(f, &amode));
	DO(MPI_File_get_group(f, &group));
	DO(MPI_File_set_size(f, 4096));
	DO(MPI_File_preallocate(f, 8192));
	DO(MPI_File_get_size(f, &offset));
	DO(MPI_Info_create(&info));
	DO(MPI_File_set_info(f, info));
	DO(MPI_File_get_info(f, &info2));
#ifndef NO_ATOMIC
	DO(MPI_File_set_atomicity(f, 1));
	DO(MPI_File_get_atomicity(f, &flag));
	DO(MPI_File_set_atomicity(f, 0));
#endif

	DO(MPI_Type_contiguous(1, MPI_INT, &one));
	DO(MPI_Type_create_resized(one, 0, 4 * ranks, &type));
	DO(MPI_Type_commit(&type));
	DO(MPI_File_set_view(f, 4 * rank, MPI_INT, type, "native", MPI_INFO_NULL));
	DO(MPI_File_get_view(f, &offset, &etype, &filetype, datarep));
	DO(MPI_File_get_type_extent(f, MPI_INT, &extent));
	DO(MPI_File_get_byte_offset(f, 3, &offset));

	DO(MPI_File_write_at(f, 0, b, 2, MPI_INT, MPI_STATUS_IGNORE));
	DO(MPI_File_write_at_all(f, 2, b, 2, MPI_INT, &status));
	DO(MPI_File_iwrite_at(f, 4, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_iwrite_at_all(f, 6, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_seek(f, 8, MPI_SEEK_SET));
	DO(MPI_File_write(f, b, 2, MPI_INT, &status));
	DO(MPI_File_write_all(f, b, 2, MPI_INT, MPI_STATUS_IGNORE));
	DO(MPI_File_iwrite(f, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_iwrite_all(f, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_get_position(f, &offset));
	DO(MPI_File_write_at_all_begin(f, 16, b, 2, MPI_INT));
	DO(MPI_File_write_at_all_end(f, b, MPI_STATUS_IGNORE));
	DO(MPI_File_write_all_begin(f, b, 2, MPI_INT));
	DO(MPI_File_write_all_end(f, b, &status));
	DO(MPI_File_sync(f));

	DO(MPI_File_read_at(f, 0, b, 2, MPI_INT, MPI_STATUS_IGNORE));
	DO(MPI_File_read_at_all(f, 2, b, 2, MPI_INT, &status));
	DO(MPI_File_iread_at(f, 4, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_iread_at_all(f, 6, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_seek(f, -10, MPI_SEEK_CUR));
	DO(MPI_File_read(f, b, 2, MPI_INT, &status));
	DO(MPI_File_read_all(f, b, 2, MPI_INT, MPI_STATUS_IGNORE));
	DO(MPI_File_iread(f, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_iread_all(f, b, 2, MPI_INT, &request)); WAIT;
	DO(MPI_File_read_at_all_begin(f, 16, b, 2, MPI_INT));
	DO(MPI_File_read_at_all_end(f, b, MPI_STATUS_IGNORE));
	DO(MPI_File_read_all_begin(f, b, 2, MPI_INT));
	DO(MPI_File_read_all_end(f, b, &status));

	DO(MPI_File_set_view(f, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
	DO(MPI_File_seek_shared(f, 0, MPI_SEEK_SET));
	DO(MPI_File_write_shared(f, b, 2, MPI_INT, MPI_STATUS_IGNORE));
	DO(MPI_File_iwrite_shared(f, b, 2, MPI_INT, &request)); WAIT;
	MPI_Barrier(MPI_COMM_WORLD);
	DO(MPI_File_write_ordered(f, b, 2, MPI_INT, &status));
	DO(MPI_File_write_ordered_begin(f, b, 2, MPI_INT));
	DO(MPI_File_write_ordered_end(f, b, MPI_STATUS_IGNORE));
	MPI_Barrier(MPI_COMM_WORLD);
	DO(MPI_File_get_position_shared(f, &offset));
	MPI_Barrier(MPI_COMM_WORLD);
	DO(MPI_File_seek_shared(f, 0, MPI_SEEK_SET));
	DO(MPI_File_read_shared(f, b, 2, MPI_INT, MPI_STATUS_IGNORE));
	DO(MPI_File_iread_shared(f, b, 2, MPI_INT, &request)); WAIT;
	MPI_Barrier(MPI_COMM_WORLD);
	DO(MPI_File_read_ordered(f, b, 2, MPI_INT, &status));
	DO(MPI_File_read_ordered_begin(f, b, 2, MPI_INT));
	DO(MPI_File_read_ordered_end(f, b, MPI_STATUS_IGNORE));
	DO(MPI_File_close(&f));
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		DO(MPI_File_delete(argv[1], MPI_INFO_NULL));
	DO(MPI_Finalize());
	return 0;
}
