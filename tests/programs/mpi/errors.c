/* Calls that fail, with an error handler that counts. The program prints the number of handler
 * calls, which must be the same without a tracer. It does not finalize, except with -DFINALIZE;
 * -DABORT ends it with MPI_Abort. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int called;

static void count(MPI_File *f, int *error, ...)
{
	called++;
}

static void fatal(MPI_Comm *c, int *error, ...)
{
	fprintf(stderr, "the communicator's error handler was called\n");
	_exit(3);
}

#define FAILS(call) \
	if ((before = called, (call)) == MPI_SUCCESS) \
		_exit(2); \
	else \
		printf("line %d: called %d times\n", __LINE__, called - before)

int main(int argc, char **argv)
{
	int before;
	char b[8] = "1234567";
	MPI_File f;
	MPI_Errhandler handler, of_comm;
	MPI_Request request;

	MPI_Init(&argc, &argv);
	MPI_Comm_create_errhandler(fatal, &of_comm);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, of_comm);
	MPI_Comm_set_errhandler(MPI_COMM_SELF, of_comm);
	MPI_File_create_errhandler(count, &handler);
	MPI_File_set_errhandler(MPI_FILE_NULL, handler);
	FAILS(MPI_File_open(MPI_COMM_SELF, "/nonexistent/file", MPI_MODE_RDONLY, MPI_INFO_NULL, &f));
	MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &f);
	MPI_File_set_errhandler(f, handler);
	FAILS(MPI_File_write_at(f, 0, b, 8, MPI_DATATYPE_NULL, MPI_STATUS_IGNORE));
	FAILS(MPI_File_write_at(f, -1, b, 8, MPI_CHAR, MPI_STATUS_IGNORE));
	FAILS(MPI_File_write_at(f, 0, b, -1, MPI_CHAR, MPI_STATUS_IGNORE));
	FAILS(MPI_File_iwrite_at(f, 0, b, 8, MPI_DATATYPE_NULL, &request));
	FAILS(MPI_File_read_at(f, 0, b, 8, MPI_CHAR, MPI_STATUS_IGNORE));
	FAILS(MPI_File_set_view(f, 0, MPI_INT, MPI_CHAR, "native", MPI_INFO_NULL));
	FAILS(MPI_File_set_view(f, 0, MPI_CHAR, MPI_CHAR, "no such", MPI_INFO_NULL));
	MPI_File_write_at(f, 0, b, 8, MPI_CHAR, MPI_STATUS_IGNORE);
	MPI_File_close(&f);
	/* The position cannot be queried in this mode. */
	MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL, MPI_INFO_NULL, &f);
	MPI_File_set_errhandler(f, handler);
	before = called;
	MPI_File_read_shared(f, b, 4, MPI_CHAR, MPI_STATUS_IGNORE);
	if (called != before)
		_exit(4);
	FAILS(MPI_File_read_at(f, 0, b, 4, MPI_CHAR, MPI_STATUS_IGNORE));
	FAILS(MPI_File_read(f, b, 4, MPI_CHAR, MPI_STATUS_IGNORE));
	fflush(stdout);
#ifdef FINALIZE
	MPI_Finalize();
#endif
#ifdef ABORT
	MPI_Abort(MPI_COMM_SELF, 9);
#endif
	_exit(0);
}
