/* Makes each communication call on an even number of ranks and checks its result. Even ranks
 * send to the next rank, odd ones receive. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define MOST 16
#define DO(call) \
	do { \
		if ((call) != MPI_SUCCESS) \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
	} while (0)
#define EXPECT(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
			MPI_Abort(MPI_COMM_WORLD, __LINE__); \
		} \
	} while (0)
/* A blocking call and its non-blocking form. */
#define PAIR(blocking, nonblocking, result, ...) \
	do { \
		for (i = 0; i < ranks; i++) \
			all[i] = -1; \
		got = sum = -1; \
		DO(blocking(__VA_ARGS__)); \
		EXPECT(result); \
		for (i = 0; i < ranks; i++) \
			all[i] = -1; \
		got = sum = -1; \
		DO(nonblocking(__VA_ARGS__, &r)); \
		NOW(&r); \
		EXPECT(result); \
	} while (0)
#define WORLD MPI_COMM_WORLD
#define NOW(request) DO(MPI_Wait(request, MPI_STATUS_IGNORE))

int main(int argc, char **argv)
{
	int rank, ranks, i, one = 7, got = 0, sum = 0, all[MOST], mine[MOST], counts[MOST], places[MOST], bytes[MOST];
	static char attached[1 << 16];
	void *detached;
	MPI_Datatype types[MOST];
	MPI_Request r, two[2];

	DO(MPI_Init(&argc, &argv));
	MPI_Comm_rank(WORLD, &rank);
	MPI_Comm_size(WORLD, &ranks);
	for (i = 0; i < ranks; i++) {
		counts[i] = 1;
		places[i] = i;
		bytes[i] = i * sizeof(int);
		types[i] = MPI_INT;
		mine[i] = 100 * rank + i;
	}
	DO(MPI_Buffer_attach(attached, sizeof attached));
	if (rank % 2 == 0) {
		int to = rank + 1;
		DO(MPI_Send(&one, 1, MPI_INT, to, 1, WORLD));
		DO(MPI_Bsend(&one, 1, MPI_INT, to, 1, WORLD));
		DO(MPI_Ssend(&one, 1, MPI_INT, to, 1, WORLD));
		DO(MPI_Isend(&one, 1, MPI_INT, to, 1, WORLD, &r));
		NOW(&r);
		DO(MPI_Ibsend(&one, 1, MPI_INT, to, 1, WORLD, &r));
		NOW(&r);
		DO(MPI_Issend(&one, 1, MPI_INT, to, 1, WORLD, &r));
		NOW(&r);
		/* The receiver is ready, because it has answered. */
		DO(MPI_Recv(&got, 1, MPI_INT, to, 2, WORLD, MPI_STATUS_IGNORE));
		DO(MPI_Rsend(&one, 1, MPI_INT, to, 3, WORLD));
		DO(MPI_Irsend(&one, 1, MPI_INT, to, 4, WORLD, &r));
		NOW(&r);
		DO(MPI_Send_init(&one, 1, MPI_INT, to, 5, WORLD, &r));
	} else {
		int from = rank - 1;
		for (i = 0; i < 6; i++) {
			got = 0;
			if (i % 2) {
				DO(MPI_Irecv(&got, 1, MPI_INT, from, 1, WORLD, &r));
				NOW(&r);
			} else {
				DO(MPI_Recv(&got, 1, MPI_INT, from, 1, WORLD, MPI_STATUS_IGNORE));
			}
			EXPECT(got == 7);
		}
		DO(MPI_Irecv(&got, 1, MPI_INT, from, 3, WORLD, &two[0]));
		DO(MPI_Irecv(&sum, 1, MPI_INT, from, 4, WORLD, &two[1]));
		DO(MPI_Send(&one, 1, MPI_INT, from, 2, WORLD));
		DO(MPI_Waitall(2, two, MPI_STATUSES_IGNORE));
		EXPECT(got == 7 && sum == 7);
		DO(MPI_Recv_init(&got, 1, MPI_INT, from, 5, WORLD, &r));
	}
	DO(MPI_Start(&r));
	NOW(&r);
	DO(MPI_Startall(1, &r));
	NOW(&r);
	DO(MPI_Request_free(&r));
	DO(MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % ranks, 6, &got, 1, MPI_INT, (rank + ranks - 1) % ranks, 6, WORLD,
			MPI_STATUS_IGNORE));
	EXPECT(got == (rank + ranks - 1) % ranks);
	got = rank;
	DO(MPI_Sendrecv_replace(&got, 1, MPI_INT, (rank + 1) % ranks, 6, (rank + ranks - 1) % ranks, 6, WORLD,
			MPI_STATUS_IGNORE));
	EXPECT(got == (rank + ranks - 1) % ranks);

	int total = ranks * (ranks - 1) / 2, last = ranks - 1;
	DO(MPI_Barrier(WORLD));
	DO(MPI_Ibarrier(WORLD, &r));
	NOW(&r);
	DO(MPI_Bcast(&one, 1, MPI_INT, 0, WORLD));
	DO(MPI_Ibcast(&one, 1, MPI_INT, 0, WORLD, &r));
	NOW(&r);
	EXPECT(one == 7);
	PAIR(MPI_Gather, MPI_Igather, rank || all[last] == last, &rank, 1, MPI_INT, all, 1, MPI_INT, 0, WORLD);
	PAIR(MPI_Gatherv, MPI_Igatherv, rank || all[last] == last, &rank, 1, MPI_INT, all, counts, places, MPI_INT, 0, WORLD);
	PAIR(MPI_Scatter, MPI_Iscatter, got == rank, mine, 1, MPI_INT, &got, 1, MPI_INT, 0, WORLD);
	PAIR(MPI_Scatterv, MPI_Iscatterv, got == rank, mine, counts, places, MPI_INT, &got, 1, MPI_INT, 0, WORLD);
	PAIR(MPI_Allgather, MPI_Iallgather, all[last] == last, &rank, 1, MPI_INT, all, 1, MPI_INT, WORLD);
	PAIR(MPI_Allgatherv, MPI_Iallgatherv, all[last] == last, &rank, 1, MPI_INT, all, counts, places, MPI_INT, WORLD);
	PAIR(MPI_Alltoall, MPI_Ialltoall, all[last] == 100 * last + rank, mine, 1, MPI_INT, all, 1, MPI_INT, WORLD);
	PAIR(MPI_Alltoallv, MPI_Ialltoallv, all[last] == 100 * last + rank, mine, counts, places, MPI_INT, all, counts, places, MPI_INT, WORLD);
	PAIR(MPI_Alltoallw, MPI_Ialltoallw, all[last] == 100 * last + rank, mine, counts, bytes, types, all, counts, bytes, types, WORLD);
	PAIR(MPI_Reduce, MPI_Ireduce, rank || sum == total, &rank, &sum, 1, MPI_INT, MPI_SUM, 0, WORLD);
	PAIR(MPI_Allreduce, MPI_Iallreduce, sum == total, &rank, &sum, 1, MPI_INT, MPI_SUM, WORLD);
	PAIR(MPI_Reduce_scatter, MPI_Ireduce_scatter, sum == 100 * total + ranks * rank, mine, &sum, counts, MPI_INT, MPI_SUM, WORLD);
	PAIR(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, sum == 100 * total + ranks * rank, mine, &sum, 1, MPI_INT, MPI_SUM, WORLD);
	PAIR(MPI_Scan, MPI_Iscan, sum == rank * (rank + 1) / 2, &rank, &sum, 1, MPI_INT, MPI_SUM, WORLD);
	PAIR(MPI_Exscan, MPI_Iexscan, rank == 0 || sum == rank * (rank - 1) / 2, &rank, &sum, 1, MPI_INT, MPI_SUM, WORLD);
	DO(MPI_Buffer_detach(&detached, &i));
	DO(MPI_Finalize());
	return 0;
}
