/* The MPI program with the hooks: writes 4 KiB at a time to a file in the page cache.
 *   mpi FILE */
#include "worker.h"

#include <mpi.h>

enum { BLOCK = 4096, BLOCKS = 1024 };

static MPI_File file;

static void setup(int argc, char **argv)
{
	if (argc != 2 || MPI_Init(NULL, NULL) != MPI_SUCCESS ||
	    MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file) != MPI_SUCCESS) {
		fprintf(stderr, "mpi: cannot open the file\n");
		exit(2);
	}
}

static void operations(uint64_t count)
{
	static char block[BLOCK];
	for (uint64_t i = 0; i < count; i++)
		if (MPI_File_write_at(file, (MPI_Offset)(i % BLOCKS) * BLOCK, block, BLOCK, MPI_BYTE,
				      MPI_STATUS_IGNORE) != MPI_SUCCESS)
			exit(2);
}
