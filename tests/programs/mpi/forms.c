/* Every form of a request that another call completes, several in flight at once, completed in
 * each way, together with messages. Each rank writes and reads BYTES by each of FORMS requests,
 * in its own part of the file. With the word `view`, the requests use a view in which the ranks
 * alternate every PIECE bytes, and not the shared pointer. With `free`, one more request is
 * freed. */

#include <mpi.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define DO(call) \
	if ((call) != MPI_SUCCESS) \
		MPI_Abort(MPI_COMM_WORLD, __LINE__)
#define BYTES 10000
#define PIECE 100
#define SLOTS 16

static MPI_File file;
static char bytes[SLOTS][BYTES];
static int rank, ranks, next, views;

/* Offset of request i in bytes of the view. */
static MPI_Offset place(int i)
{
	return views ? (MPI_Offset)i * BYTES : ((MPI_Offset)rank * SLOTS + i) * BYTES;
}

static void *wait_there(void *request)
{
	DO(MPI_Wait(request, MPI_STATUS_IGNORE));
	return NULL;
}

#define AT(call, request) \
	do { \
		DO(call(file, place(next), bytes[next], BYTES, MPI_BYTE, request)); \
		next++; \
	} while (0)
#define POINTER(call, request) \
	do { \
		DO(call(file, bytes[next], BYTES, MPI_BYTE, request)); \
		next++; \
	} while (0)

#define ALL(way) \
	static void all_##way(int frees) \
	{ \
		MPI_Request r[3]; \
		int flag, count, done, index, indices[3]; \
		pthread_t thread; \
		next = 0; \
		AT(MPI_File_i##way##_at, &r[0]); /* 0, 1, 2 */ \
		AT(MPI_File_i##way##_at, &r[1]); \
		AT(MPI_File_i##way##_at, &r[2]); \
		DO(MPI_Barrier(MPI_COMM_WORLD)); \
		DO(MPI_Waitall(3, r, MPI_STATUSES_IGNORE)); \
		AT(MPI_File_i##way##_at, &r[0]); /* 3, 4 */ \
		AT(MPI_File_i##way##_at, &r[1]); \
		DO(MPI_Waitany(2, r, &index, MPI_STATUS_IGNORE)); \
		DO(MPI_Waitany(2, r, &index, MPI_STATUS_IGNORE)); \
		DO(MPI_File_seek(file, place(next), MPI_SEEK_SET)); \
		POINTER(MPI_File_i##way, &r[0]); /* 5, 6 */ \
		POINTER(MPI_File_i##way, &r[1]); \
		for (done = 0; done < 2; done += count) \
			DO(MPI_Testsome(2, r, &count, indices, MPI_STATUSES_IGNORE)); \
		AT(MPI_File_i##way##_at_all, &r[0]); /* 7 */ \
		DO(MPI_Wait(&r[0], MPI_STATUS_IGNORE)); \
		DO(MPI_File_seek(file, place(next), MPI_SEEK_SET)); \
		POINTER(MPI_File_i##way##_all, &r[0]); /* 8 */ \
		for (flag = 0; !flag;) \
			DO(MPI_Test(&r[0], &flag, MPI_STATUS_IGNORE)); \
		DO(MPI_File_##way##_at_all_begin(file, place(next), bytes[next], BYTES, MPI_BYTE)); /* 9 */ \
		DO(MPI_Barrier(MPI_COMM_WORLD)); \
		DO(MPI_File_##way##_at_all_end(file, bytes[next], MPI_STATUS_IGNORE)); \
		next++; \
		DO(MPI_File_seek(file, place(next), MPI_SEEK_SET)); \
		DO(MPI_File_##way##_all_begin(file, bytes[next], BYTES, MPI_BYTE)); /* 10 */ \
		DO(MPI_File_##way##_all_end(file, bytes[next], MPI_STATUS_IGNORE)); \
		next++; \
		AT(MPI_File_i##way##_at, &r[0]); /* 11, ended by another thread */ \
		pthread_create(&thread, NULL, wait_there, &r[0]); \
		pthread_join(thread, NULL); \
		if (frees) { \
			AT(MPI_File_i##way##_at, &r[0]); \
			/* MPICH 4.0.2 frees memory that libc's thread for asynchronous I/O still uses, \
			 * also without a hook. */ \
			usleep(500 * 1000); \
			DO(MPI_Request_free(&r[0])); \
		} \
		if (views) \
			return; \
		/* What the ranks have moved is in a row from here on, in any order. */ \
		DO(MPI_File_seek_shared(file, (MPI_Offset)ranks * SLOTS * BYTES, MPI_SEEK_SET)); \
		POINTER(MPI_File_i##way##_shared, &r[0]); /* 12 */ \
		DO(MPI_Wait(&r[0], MPI_STATUS_IGNORE)); \
		DO(MPI_Barrier(MPI_COMM_WORLD)); \
		DO(MPI_File_##way##_ordered_begin(file, bytes[next], BYTES, MPI_BYTE)); /* 13 */ \
		DO(MPI_File_##way##_ordered_end(file, bytes[next], MPI_STATUS_IGNORE)); \
		next++; \
	}

ALL(write)
ALL(read)

int main(int argc, char **argv)
{
	int level, frees = argc > 2 && !strcmp(argv[2], "free");
	MPI_Datatype type;

	views = argc > 2 && !strcmp(argv[2], "view");
	DO(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level));
	if (level != MPI_THREAD_MULTIPLE)
		MPI_Abort(MPI_COMM_WORLD, __LINE__);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	DO(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file));
	if (views) {
		MPI_Datatype piece;
		DO(MPI_Type_contiguous(PIECE, MPI_BYTE, &piece));
		DO(MPI_Type_create_resized(piece, 0, PIECE * ranks, &type));
		DO(MPI_Type_commit(&type));
		DO(MPI_File_set_view(file, rank * PIECE, MPI_BYTE, type, "native", MPI_INFO_NULL));
	}
	all_write(frees);
	DO(MPI_Barrier(MPI_COMM_WORLD));
	DO(MPI_File_sync(file));
	all_read(0);
	DO(MPI_File_close(&file));
	DO(MPI_Finalize());
	return 0;
}
