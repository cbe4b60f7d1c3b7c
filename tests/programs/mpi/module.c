/* A module that loads MPI, like those of Python. -DHOST is the program that opens it, without
 * MPI. */

#ifdef HOST
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *module = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	int (*run)(char *) = module ? (int (*)(char *))dlsym(module, "run") : NULL;
	if (!run) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	return run(argv[2]);
}
#else
#include <mpi.h>
#include <stddef.h>

int run(char *name)
{
	MPI_File f;
	int failed = MPI_Init(NULL, NULL) != MPI_SUCCESS;
	failed |= MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &f) != MPI_SUCCESS;
	failed |= MPI_File_write(f, "1234", 4, MPI_CHAR, MPI_STATUS_IGNORE) != MPI_SUCCESS;
	failed |= MPI_File_close(&f) != MPI_SUCCESS;
	return MPI_Finalize() != MPI_SUCCESS || failed;
}
#endif
