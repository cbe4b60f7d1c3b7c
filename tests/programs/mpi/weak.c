/* A program for several MPI libraries, as the wheel of mpi4py: it refers weakly to functions with
   large counts, and uses those that exist. Open MPI 4 has none. */
#include <assert.h>
#include <mpi.h>
#include <string.h>

#pragma weak MPI_Bcast_c
#pragma weak MPI_Sendrecv_c
#pragma weak MPI_File_write_at_c
#pragma weak MPI_Allgatherv_c
int MPI_Bcast_c(void *, MPI_Count, MPI_Datatype, int, MPI_Comm);
int MPI_Sendrecv_c(const void *, MPI_Count, MPI_Datatype, int, int, void *, MPI_Count, MPI_Datatype, int, int,
                   MPI_Comm, MPI_Status *);
int MPI_File_write_at_c(MPI_File, MPI_Offset, const void *, MPI_Count, MPI_Datatype, MPI_Status *);
int MPI_Allgatherv_c(const void *, MPI_Count, MPI_Datatype, void *, const MPI_Count *, const MPI_Aint *,
                     MPI_Datatype, MPI_Comm);

int main(int argc, char **argv) {
	const char sent[8] = "weakness";
	char got[8] = "";
	const MPI_Count large = (MPI_Count)1 << 32;
	MPI_File file;
	assert(argc == 2);
	MPI_Init(&argc, &argv);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (MPI_Bcast_c) {
		memcpy(got, sent, 8);
		assert(MPI_Bcast_c(got, 8, MPI_CHAR, 0, MPI_COMM_WORLD) == MPI_SUCCESS);
		assert(MPI_Bcast_c(got, large, MPI_CHAR, 0, MPI_COMM_WORLD) != MPI_SUCCESS);
	}
	if (MPI_Sendrecv_c) {
		assert(MPI_Sendrecv_c(sent, 8, MPI_CHAR, 0, 0, got, 8, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE) ==
		       MPI_SUCCESS);
		assert(!memcmp(sent, got, 8));
		assert(MPI_Sendrecv_c(sent, 8, MPI_CHAR, 0, 0, got, large, MPI_CHAR, 0, 0, MPI_COMM_WORLD,
		                      MPI_STATUS_IGNORE) != MPI_SUCCESS);
	}
	assert(!MPI_Allgatherv_c);
	assert(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file) ==
	       MPI_SUCCESS);
	if (MPI_File_write_at_c)
		assert(MPI_File_write_at_c(file, 4, sent, 8, MPI_CHAR, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	else
		assert(MPI_File_write_at(file, 4, sent, 8, MPI_CHAR, MPI_STATUS_IGNORE) == MPI_SUCCESS);
	MPI_File_close(&file);
	MPI_Finalize();
	return 0;
}
