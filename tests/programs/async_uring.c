/* io_uring: through liburing's calls, through syscall(2), and without either. */
#include "asynchronous.h"
#include <liburing.h>
#include <sys/stat.h>

#define SIZE 10000
#define MANY 6000
#define THREADED 400

static char buffer[65536];
static int fd, refusing;
static struct io_uring ring;

static struct io_uring_sqe *entry(struct io_uring *of) {
    struct io_uring_sqe *entry = io_uring_get_sqe(of);
    CHECK(entry);
    return entry;
}

/* Waits for one completion, without a call if it is there already. */
static long collected(struct io_uring *of) {
    struct io_uring_cqe *completion;
    CHECK(io_uring_wait_cqe(of, &completion) == 0);
    long result = completion->res;
    io_uring_cqe_seen(of, completion);
    return result;
}

static long done(void) {
    CHECK(io_uring_submit(&ring) == 1);
    return collected(&ring);
}

static void data(void) {
    struct iovec vector[] = {{buffer, 11}, {buffer + 100, 22}};
    io_uring_prep_write(entry(&ring), fd, buffer, 20, 10);
    note("uring_write", "data", 10, 20, done());
    io_uring_prep_read(entry(&ring), fd, buffer, 50, SIZE - 5);
    note("uring_read", "data", SIZE - 5, 50, done());
    io_uring_prep_writev(entry(&ring), fd, vector, 2, 40);
    note("uring_write", "data", 40, 33, done());
    io_uring_prep_readv(entry(&ring), fd, vector, 2, 41);
    note("uring_read", "data", 41, 33, done());
    io_uring_prep_fsync(entry(&ring), fd, 0);
    note("uring_fsync", "data", NO, NO, done());
    io_uring_prep_sync_file_range(entry(&ring), fd, 100, 200, 0);
    note("uring_sync_file_range", "data", 200, 100, done());
    io_uring_prep_fallocate(entry(&ring), fd, 0, 300, 400);
    note("uring_fallocate", "data", 300, 400, done());
    io_uring_prep_fadvise(entry(&ring), fd, 500, 600, POSIX_FADV_NORMAL);
    note("uring_fadvise", "data", 500, 600, done());
    io_uring_prep_read(entry(&ring), refusing, buffer, 5, 6);
    note("uring_read", "refusing", 6, 5, done());
    io_uring_prep_read(entry(&ring), fd, (void *)8, 30, 60);
    note("uring_read", "data", 60, 30, done());
    io_uring_prep_readv(entry(&ring), fd, (void *)8, 3, 61);
    note("uring_read", "data", 61, NO, done());
    /* At the file position. A later call finds the advanced position. */
    io_uring_prep_read(entry(&ring), fd, buffer, 7, -1);
    note("uring_read", "data", NO, 7, done());
    CHECK(lseek(fd, 0, SEEK_CUR) == 7);
    /* A request of the ring without a file. */
    io_uring_prep_nop(entry(&ring));
    CHECK(done() == 0);
    int ends[2];
    CHECK(pipe(ends) == 0 && write(ends[1], "pipe", 4) == 4);
    io_uring_prep_splice(entry(&ring), ends[0], -1, fd, 70, 4, 0);
    note("uring_splice", "data", 70, 4, done());
    io_uring_prep_write(entry(&ring), ends[1], "x", 1, 0);
    CHECK(done() == 1);
    CHECK(io_uring_register_files(&ring, &fd, 1) == 0);
    struct io_uring_sqe *fixed = entry(&ring);
    io_uring_prep_read(fixed, 0, buffer, 8, 9);
    fixed->flags |= IOSQE_FIXED_FILE;
    note("uring_read", "none", 9, 8, done());
}

static void names(void) {
    struct statx stat;
    io_uring_prep_mkdirat(entry(&ring), AT_FDCWD, "folder", 0700);
    note("uring_mkdir", "folder", NO, NO, done());
    io_uring_prep_openat(entry(&ring), AT_FDCWD, "folder/opened", O_CREAT | O_RDWR, 0600);
    long opened = done();
    note("uring_open", "opened", NO, NO, opened);
    io_uring_prep_write(entry(&ring), opened, buffer, 12, 0);
    note("uring_write", "opened", 0, 12, done());
    io_uring_prep_statx(entry(&ring), AT_FDCWD, "folder/opened", 0, STATX_SIZE, &stat);
    note("uring_statx", "opened", NO, NO, done());
    CHECK(stat.stx_size == 12);
    io_uring_prep_close(entry(&ring), opened);
    note("uring_close", "opened", NO, NO, done());
    io_uring_prep_openat(entry(&ring), AT_FDCWD, "/dev/null", O_RDWR, 0);
    CHECK(done() == opened);
    CHECK(write(opened, "x", 1) == 1 && close(opened) == 0);
    io_uring_prep_openat(entry(&ring), AT_FDCWD, "missing", O_RDONLY, 0);
    note("uring_open", "missing", NO, NO, done());
    io_uring_prep_openat(entry(&ring), AT_FDCWD, (char *)8, O_RDONLY, 0);
    note("uring_open", "none", NO, NO, done());
    io_uring_prep_renameat(entry(&ring), AT_FDCWD, "folder/opened", AT_FDCWD, "renamed", 0);
    note("uring_rename", "opened", NO, NO, done());
    io_uring_prep_linkat(entry(&ring), AT_FDCWD, "renamed", AT_FDCWD, "linked", 0);
    note("uring_link", "renamed", NO, NO, done());
    io_uring_prep_symlinkat(entry(&ring), "renamed", AT_FDCWD, "symbolic");
    note("uring_symlink", "symbolic", NO, NO, done());
    io_uring_prep_unlinkat(entry(&ring), AT_FDCWD, "linked", 0);
    note("uring_unlink", "linked", NO, NO, done());
}

/* One `user_data` for all, completions taken without a call, several of one submission. */
static void batches(void) {
    for (int i = 0; i < 8; i++) {
        io_uring_prep_read(entry(&ring), fd, buffer, 100 + i, 1000 + i);
        note("uring_read", "data", 1000 + i, 100 + i, 100 + i);
    }
    CHECK(io_uring_submit(&ring) == 8);
    unsigned head, count = 0;
    struct io_uring_cqe *completion;
    io_uring_for_each_cqe(&ring, head, completion) CHECK(completion->res == 100 + count++);
    CHECK(count == 8);
    io_uring_cq_advance(&ring, count);

    struct io_uring_sqe *silent = entry(&ring);
    io_uring_prep_read(silent, fd, buffer, 9, 1100);
    silent->flags |= IOSQE_CQE_SKIP_SUCCESS;
    CHECK(io_uring_submit(&ring) == 1);
    note("uring_read", "data", 1100, 9, UNSEEN);

    io_uring_prep_read(entry(&ring), fd, buffer, 10, 1101);
    CHECK(io_uring_submit_and_wait(&ring, 1) == 1);
    CHECK(io_uring_peek_batch_cqe(&ring, &completion, 1) == 1);
    note("uring_read", "data", 1101, 10, completion->res);
    io_uring_cqe_seen(&ring, completion);
}

static void many(void) {
    struct io_uring large;
    int other = file("many", O_RDONLY, MANY);
    CHECK(io_uring_queue_init(4096, &large, 0) == 0);
    for (int i = 0; i < MANY; i++) {
        io_uring_prep_read(entry(&large), other, buffer, 1, i);
        if (i == MANY / 2)
            CHECK(io_uring_submit(&large) == i + 1);
    }
    CHECK(io_uring_submit(&large) == MANY - MANY / 2 - 1);
    for (int i = 0; i < MANY; i++)
        CHECK(collected(&large) == 1);
    io_uring_queue_exit(&large);
}

/* Executed by the kernel's threads: submitted in one thread, collected in another. */
static void *collect(void *of) {
    for (int i = 0; i < THREADED; i++)
        CHECK(collected(of) == 3);
    return NULL;
}

static void elsewhere(void) {
    struct io_uring shared;
    CHECK(io_uring_queue_init(512, &shared, 0) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, collect, &shared) == 0);
    for (int i = 0; i < THREADED; i++) {
        struct io_uring_sqe *one = entry(&shared);
        io_uring_prep_read(one, fd, buffer + i * 8, 3, 2000 + i);
        one->flags |= IOSQE_ASYNC;
        one->user_data = i;
        note("uring_read", "data", 2000 + i, 3, 3);
        if (i % 4 == 3)
            CHECK(io_uring_submit(&shared) == 4);
    }
    pthread_join(thread, NULL);
    io_uring_queue_exit(&shared);
}

static void forked(void) {
    io_uring_prep_write(entry(&ring), fd, buffer, 60, 600);
    CHECK(io_uring_submit(&ring) == 1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        CHECK(pread(fd, &byte, 1, 0) == 1);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    note("uring_write", "data", 600, 60, collected(&ring));
}

/* A ring that the program sets up itself, used in the two ways of a program without the library. */
static long enter_unseen(int fd, unsigned count) {
    register long r10 asm("r10") = 0, r8 asm("r8") = 0, r9 asm("r9") = 0;
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(SYS_io_uring_enter), "D"(fd), "S"(count), "d"(0), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
}

static void raw(void) {
    struct io_uring_params made = {0};
    int own = syscall(SYS_io_uring_setup, 8, &made);
    CHECK(own >= 0 && made.features & IORING_FEAT_SINGLE_MMAP);
    size_t bytes = made.cq_off.cqes + made.cq_entries * sizeof(struct io_uring_cqe);
    size_t of_array = made.sq_off.array + made.sq_entries * sizeof(unsigned);
    if (of_array > bytes)
        bytes = of_array;
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, own, IORING_OFF_SQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, made.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_POPULATE, own, IORING_OFF_SQES);
    CHECK(shared != MAP_FAILED && entries != MAP_FAILED);
    unsigned *tail = (unsigned *)(shared + made.sq_off.tail), *array = (unsigned *)(shared + made.sq_off.array);
    struct io_uring_cqe *completions = (struct io_uring_cqe *)(shared + made.cq_off.cqes);
    for (unsigned i = 0; i < 7; i++) {
        int unseen = i >= 2 && i < 6;
        memset(&entries[i], 0, sizeof entries[i]);
        io_uring_prep_read(&entries[i], fd, buffer, 10 + i, 3000 + i);
        entries[i].user_data = i;
        array[*tail & 7] = i;
        __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
        CHECK((unseen ? enter_unseen(own, 1) : syscall(SYS_io_uring_enter, own, 1, 0, 0, NULL, 0)) == 1);
        if (!unseen)
            note("uring_read", "data", 3000 + i, 10 + i, completions[i].res);
    }
    note("uring_unseen", "none", NO, NO, 4);
    munmap(shared, bytes);
    munmap(entries, made.sq_entries * sizeof *entries);
    close(own);
}

int main(void) {
    fd = file("data", O_RDWR, SIZE);
    refusing = file("refusing", O_WRONLY, 10);
    int made = io_uring_queue_init(64, &ring, 0);
    if (made < 0) {
        fprintf(stderr, "io_uring is not available: %s\n", strerror(-made));
        return 77;
    }
    data();
    names();
    batches();
    many();
    elsewhere();
    forked();
    raw();
    /* Abandoned request. */
    io_uring_prep_read(entry(&ring), fd, buffer, 13, 4000);
    CHECK(io_uring_submit(&ring) == 1);
    note("uring_read", "data", 4000, 13, 13);
    return 0;
}
