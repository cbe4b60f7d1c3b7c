/* Solver whose ranks write one shared file together after each step.
 *
 * late FILE STEPS CELLS...
 *
 * CELLS has one number for each rank: a rank takes 1 ms for each of its cells in a step. (It
 * sleeps, in place of a computation.) Each rank then writes 1 MiB with a collective call.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BYTES = 1 << 20 };

static void compute(long cells) {
    struct timespec time = {cells / 1000, cells % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc != 3 + size) {
        if (rank == 0) fprintf(stderr, "usage: late FILE STEPS CELLS... (one number for each rank)\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long steps = atol(argv[2]), cells = atol(argv[3 + rank]);
    char *data = malloc(BYTES);
    memset(data, rank, BYTES);

    MPI_File file;
    MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    double begun = MPI_Wtime();
    for (long step = 0; step < steps; step++) {
        compute(cells);
        MPI_Offset offset = ((MPI_Offset)step * size + rank) * BYTES;
        MPI_File_write_at_all(file, offset, data, BYTES, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    double taken = MPI_Wtime() - begun;
    MPI_File_close(&file);
    if (rank == 0) printf("%ld steps in %.2f s\n", steps, taken);
    free(data);
    MPI_Finalize();
    return 0;
}
