/* Requests completed in every way, together with messages, and on another thread than the one
 * that submitted them. Request i writes i + 1 bytes at 100 i. */

#include <mpi.h>
#include <pthread.h>
#include <string.h>

#define DO(call) \
	if ((call) != MPI_SUCCESS) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)

static MPI_File file;
static char bytes[64];
static int next;

static void submit(MPI_Request *request)
{
	int i = next++;
	DO(MPI_File_iwrite_at(file, 100 * i, bytes, i + 1, MPI_CHAR, request));
}

static void *other(void *request)
{
	DO(MPI_Wait(request, MPI_STATUS_IGNORE));
	return NULL;
}

int main(int argc, char **argv)
{
	int level, flag, index, count, done, indices[4], sent = 1, got;
	MPI_Request r[4];
	MPI_Status statuses[4];
	pthread_t thread;

	DO(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
	if (level != MPI_THREAD_MULTIPLE)
		MPI_Abort(MPI_COMM_WORLD, __LINE__);
	DO(MPI_File_open(MPI_COMM_SELF, argv[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file));

	submit(&r[0]); /* 0 */
	DO(MPI_Wait(&r[0], &statuses[0]));
	submit(&r[0]); /* 1 */
	for (flag = 0; !flag;)
		DO(MPI_Test(&r[0], &flag, MPI_STATUS_IGNORE));

	submit(&r[0]); /* 2, 3 together with a message */
	DO(MPI_Isend(&sent, 1, MPI_INT, 0, 7, MPI_COMM_SELF, &r[1]));
	DO(MPI_Irecv(&got, 1, MPI_INT, 0, 7, MPI_COMM_SELF, &r[2]));
	submit(&r[3]);
	DO(MPI_Waitall(4, r, MPI_STATUSES_IGNORE));

	/* 4, 5, one after the other: MPICH 4.0.2 fails an assertion of its own when MPI_Testall finds
	 * some of several completed. */
	for (count = 0; count < 2; count++) {
		submit(&r[count]);
		r[1 - count] = MPI_REQUEST_NULL;
		for (flag = 0; !flag;)
			DO(MPI_Testall(2, r, &flag, statuses));
	}

	submit(&r[0]); /* 6, 7 */
	submit(&r[1]);
	DO(MPI_Waitany(2, r, &index, MPI_STATUS_IGNORE));
	for (flag = 0; !flag;)
		DO(MPI_Testany(2, r, &index, &flag, &statuses[0]));

	submit(&r[0]); /* 8, 9, 10 */
	submit(&r[1]);
	submit(&r[2]);
	for (done = 0; done < 3; done += count)
		DO(MPI_Waitsome(3, r, &count, indices, MPI_STATUSES_IGNORE));

	submit(&r[0]); /* 11, 12 */
	submit(&r[1]);
	for (done = 0; done < 2; done += count)
		DO(MPI_Testsome(2, r, &count, indices, statuses));

	submit(&r[0]); /* 13; MPICH does not check for completion here */
	DO(MPI_Request_get_status(r[0], &flag, MPI_STATUS_IGNORE));
	DO(MPI_Wait(&r[0], MPI_STATUS_IGNORE));

	submit(&r[0]); /* 14, completed by another thread */
	pthread_create(&thread, NULL, other, &r[0]);
	pthread_join(thread, NULL);

	DO(MPI_File_close(&file));
	DO(MPI_Finalize());
	return 0;
}
