/* phases MODE FILE STEPS COUNT SIZE: access patterns with known phases. Each rank makes COUNT
 * requests of SIZE bytes in each of STEPS steps.
 *
 *   barriers    one shared file, each rank its part of it; only a barrier between steps
 *   messages    the same with only a message between steps
 *   nothing     the same without communication between steps
 *   checkpoint  a new shared file in each step
 *   strided     one step; ranks alternate, request by request
 *   own         a file for each rank, written in one step and read back in another
 *   two         two shared files at once, alternating requests to both
 *   update      each block is read and written again before the next
 *   random      anywhere in the file, in one step
 *   header      as barriers, but rank 0 first writes 64 bytes at the start of each step
 *   late        as barriers, but rank 0 does nothing in the first step
 *   rewrite     the same part of the file in each step, but rank 0 does nothing in the second
 *   dies        as barriers, but the last rank is killed before its last step */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DO(call) \
	do { \
		if ((call) != MPI_SUCCESS) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)

static int rank, ranks, steps, count, size;
static char *buffer;

static MPI_File opened(const char *name, MPI_Comm comm)
{
	MPI_File f;
	DO(MPI_File_open(comm, name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &f));
	return f;
}

static void put(MPI_File f, MPI_Offset at)
{
	DO(MPI_File_write_at(f, at, buffer, size, MPI_BYTE, MPI_STATUS_IGNORE));
}

static void get(MPI_File f, MPI_Offset at)
{
	DO(MPI_File_read_at(f, at, buffer, size, MPI_BYTE, MPI_STATUS_IGNORE));
}

static void between(const char *mode)
{
	if (!strcmp(mode, "messages")) {
		int out = rank, in;
		DO(MPI_Sendrecv(&out, 1, MPI_INT, (rank + 1) % ranks, 0, &in, 1, MPI_INT, (rank + ranks - 1) % ranks, 0,
				MPI_COMM_WORLD, MPI_STATUS_IGNORE));
	} else if (strcmp(mode, "nothing")) {
		DO(MPI_Barrier(MPI_COMM_WORLD));
	}
}

int main(int argc, char **argv)
{
	const char *mode = argv[1], *name = argv[2];
	char own[4096];
	int step, i;
	MPI_File f, g;
	MPI_Offset part;

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	steps = atoi(argv[3]);
	count = atoi(argv[4]);
	size = atoi(argv[5]);
	buffer = calloc(1, size);
	part = (MPI_Offset)steps * count * size;
	if (!strcmp(mode, "checkpoint")) {
		for (step = 0; step < steps; step++) {
			snprintf(own, sizeof own, "%s.%04d", name, step);
			f = opened(own, MPI_COMM_WORLD);
			for (i = 0; i < count; i++)
				put(f, ((MPI_Offset)rank * count + i) * size);
			DO(MPI_File_close(&f));
		}
	} else if (!strcmp(mode, "own")) {
		snprintf(own, sizeof own, "%s.%d", name, rank);
		f = opened(own, MPI_COMM_SELF);
		for (i = 0; i < count; i++)
			put(f, (MPI_Offset)i * size);
		between(mode);
		for (i = 0; i < count; i++)
			get(f, (MPI_Offset)i * size);
		DO(MPI_File_close(&f));
	} else if (!strcmp(mode, "two")) {
		snprintf(own, sizeof own, "%s.other", name);
		f = opened(name, MPI_COMM_WORLD);
		g = opened(own, MPI_COMM_WORLD);
		for (step = 0; step < steps; step++) {
			for (i = 0; i < count; i++) {
				put(f, rank * part + ((MPI_Offset)step * count + i) * size);
				put(g, ((MPI_Offset)(step * count + i) * ranks + rank) * size);
			}
			between(mode);
		}
		DO(MPI_File_close(&f));
		DO(MPI_File_close(&g));
	} else {
		unsigned long random = 12345 + rank;
		f = opened(name, MPI_COMM_WORLD);
		/* The file must have the bytes to be read. */
		DO(MPI_File_set_size(f, ranks * part));
		for (step = 0; step < steps; step++) {
			if (!strcmp(mode, "header") && rank == 0)
				DO(MPI_File_write_at(f, 0, buffer, 64, MPI_BYTE, MPI_STATUS_IGNORE));
			if (!strcmp(mode, "dies") && rank == ranks - 1 && step == steps - 1)
				kill(getpid(), SIGKILL);
			int rests = rank == 0 && ((!strcmp(mode, "late") && step == 0) || (!strcmp(mode, "rewrite") && step == 1));
			for (i = 0; i < count && !rests; i++) {
				MPI_Offset at = rank * part + ((MPI_Offset)step * count + i) * size;
				random = random * 6364136223846793005UL + 1442695040888963407UL;
				if (!strcmp(mode, "strided"))
					at = ((MPI_Offset)i * ranks + rank) * size;
				if (!strcmp(mode, "random"))
					at = (random >> 33) % 4096 * size;
				if (!strcmp(mode, "header"))
					at += 64;
				if (!strcmp(mode, "rewrite"))
					at = rank * part + (MPI_Offset)i * size;
				if (!strcmp(mode, "update"))
					get(f, at);
				put(f, at);
			}
			between(mode);
		}
		DO(MPI_File_close(&f));
	}
	DO(MPI_Finalize());
	return 0;
}
