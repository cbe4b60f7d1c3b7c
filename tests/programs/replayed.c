/* replayed MODE DIR: I/O of many kinds in DIR, for traces that are replayed. */

#define _GNU_SOURCE
#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(ok) ((ok) ? (void)0 : (perror(#ok), exit(1)))

static char buffer[1 << 16];

static void *writes(void *number)
{
	char name[32];
	long n = (long)number;
	snprintf(name, sizeof name, "thread-%ld", n);
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644), shared = open("shared", O_RDWR);
	CHECK(fd >= 0 && shared >= 0);
	for (int i = 0; i < 50; i++) {
		CHECK(write(fd, buffer, 100 + n) == 100 + n);
		CHECK(pwrite(shared, buffer, 512, (i * 4 + n) * 512) == 512);
	}
	CHECK(lseek(fd, 10, SEEK_SET) == 10 && read(fd, buffer + 4096 * (n + 1), 50) == 50);
	CHECK(close(fd) == 0 && close(shared) == 0);
	return NULL;
}

static void threads(void)
{
	pthread_t all[4];
	int fd = open("shared", O_WRONLY | O_CREAT, 0644);
	for (long n = 0; n < 4; n++)
		CHECK(pthread_create(&all[n], NULL, writes, (void *)n) == 0);
	for (int n = 0; n < 4; n++)
		pthread_join(all[n], NULL);
	CHECK(fsync(fd) == 0 && close(fd) == 0);
	fd = open("shared", O_RDONLY);
	while (read(fd, buffer, 10000) > 0)
		;
	CHECK(close(fd) == 0);
}

static void maps(void)
{
	int fd = open("before", O_RDWR), new = open("mapped", O_RDWR | O_CREAT, 0600);
	CHECK(fd >= 0 && new >= 0 && ftruncate(new, 8192) == 0);
	char *a = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	char *b = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, new, 0);
	memcpy(b, a, 4096);
	CHECK(msync(b, 8192, MS_SYNC) == 0 && close(new) == 0);
	CHECK(munmap(b, 8192) == 0 && munmap(a, 4096) == 0 && close(fd) == 0);
}

static void asynchronous(void)
{
	int fd = open("aio", O_RDWR | O_CREAT | O_TRUNC, 0644);
	struct aiocb blocks[3] = {0};
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 3; i++) {
			blocks[i] = (struct aiocb){.aio_fildes = fd, .aio_buf = buffer + i * 8192, .aio_nbytes = 1000 + i, .aio_offset = round * 8192 + i * 2000};
			CHECK((round % 2 ? aio_read : aio_write)(&blocks[i]) == 0);
		}
		for (int i = 0; i < 3; i++) {
			const struct aiocb *list[] = {&blocks[i]};
			while (aio_error(&blocks[i]) == EINPROGRESS)
				aio_suspend(list, 1, NULL);
			aio_return(&blocks[i]);
		}
	}
	CHECK(close(fd) == 0);
}

static void descriptors(void)
{
	int fd = open("before", O_RDWR), more = dup(fd), log = open("log", O_WRONLY | O_APPEND);
	CHECK(fd >= 0 && more >= 0 && log >= 0);
	CHECK(write(log, "first\n", 6) == 6 && read(fd, buffer, 100) == 100 && read(more, buffer, 11) == 11);
	CHECK(dup2(log, 77) == 77 && write(77, "again\n", 6) == 6 && fcntl(fd, F_DUPFD_CLOEXEC, 100) >= 100);
	pid_t child = fork();
	if (child == 0) {
		/* Parent and child share one position. */
		CHECK(read(fd, buffer, 50) == 50 && write(log, "child\n", 6) == 6);
		CHECK(lseek(more, 7, SEEK_CUR) == 168 && close(fd) == 0);
		int own = open("childs", O_WRONLY | O_CREAT, 0644);
		CHECK(write(own, buffer, 10) == 10 && ftruncate(own, 5) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, NULL, 0) == child);
	CHECK(read(fd, buffer, 20) == 20 && lseek(fd, 0, SEEK_CUR) == 188 && write(log, "last\n", 5) == 5);
	CHECK(close(77) == 0 && close(more) == 0 && read(fd, buffer, 1 << 16) > 0 && read(fd, buffer, 10) == 0);
	CHECK(flock(fd, LOCK_EX) == 0 && flock(fd, LOCK_UN) == 0);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
	CHECK(fcntl(fd, F_SETLK, &lock) == 0 && close(fd) == 0 && close(log) == 0);
	if (fork() == 0)
		execl("/bin/sh", "sh", "-c", "cat before > copied; echo more >> log; wc -c < childs > count", NULL);
	wait(NULL);
}

static void ranges(void)
{
	int locked = open("before", O_RDWR), kept = open("log", O_RDONLY);
	CHECK(locked >= 0 && kept == locked + 1 && flock(locked, LOCK_EX) == 0);
	pid_t child = fork();
	if (child == 0) {
		CHECK(close_range(locked, locked, 0) == 0);
		int own = open("before", O_RDONLY);
		CHECK(flock(own, LOCK_EX) == 0 && close(own) == 0);
		_exit(0);
	}
	CHECK(close_range(locked, kept, CLOSE_RANGE_CLOEXEC) == 0 && read(locked, buffer, 10) == 10);
	CHECK(usleep(20000) == 0 && close_range(locked, locked, 0) == 0);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0 && read(kept, buffer, 6) == 6 && close(kept) == 0);
}

static void sizes(void)
{
	int fd = open("sparse", O_RDWR | O_CREAT, 0644);
	CHECK(pwrite(fd, "x", 1, 1 << 20) == 1 && ftruncate(fd, 3 << 20) == 0 && lseek(fd, 0, SEEK_END) == 3 << 20);
	CHECK(pread(fd, buffer, 5000, (3 << 20) - 100) == 100 && lseek(fd, 0, SEEK_DATA) >= 0);
	CHECK(posix_fallocate(fd, 4 << 20, 4096) == 0 && truncate("sparse", 10) == 0 && pread(fd, buffer, 100, 0) == 10);
	struct iovec pieces[2] = {{buffer, 10}, {buffer + 5000, 30}};
	CHECK(writev(fd, pieces, 2) == 40 && preadv(fd, pieces, 2, 20) > 0 && pwritev(fd, pieces, 2, 100) == 40);
	int from = open("before", O_RDONLY);
	CHECK(copy_file_range(from, NULL, fd, NULL, 1000, 0) == 1000 && sendfile(fd, from, NULL, 500) == 500);
	CHECK(write(from, "no", 2) == -1 && close(from) == 0 && close(fd) == 0);
	CHECK(open("missing", O_RDONLY) == -1 && open("before/x", O_RDONLY) == -1);
	CHECK(mkdir("d", 0755) == 0 && mkdir("d", 0755) == -1 && rename("sparse", "d/s") == 0 && rmdir("d") == -1);
	CHECK(symlink("d/s", "link") == 0 && link("link", "hard") == 0 && rename("d", "e") == 0);
	CHECK(access("e/s", R_OK) == 0 && unlink("link") == 0 && unlink("hard") == 0);
	DIR *directory = opendir("e");
	while (readdir(directory))
		;
	CHECK(closedir(directory) == 0 && chmod("e/s", 0600) == 0);
}

static void streams(void)
{
	FILE *file = fopen("stream", "w+"), *before = fopen("before", "r");
	for (int i = 0; i < 100; i++)
		CHECK(fprintf(file, "%d lines\n", i) > 0 && fputs("text", file) >= 0 && fputc('\n', file) == '\n');
	CHECK(fwrite(buffer, 10, 1000, file) == 1000 && fflush(file) == 0 && fseek(file, 10, SEEK_SET) == 0);
	CHECK(fread(buffer, 1, 333, file) == 333 && ftell(file) == 343 && fclose(file) == 0);
	while (fread(buffer, 1, 1000, before) == 1000)
		;
	CHECK(fgetc(before) == EOF && fclose(before) == 0);
	file = fopen("stream", "a");
	CHECK(fwrite(buffer, 1, 77, file) == 77 && fclose(file) == 0);
}

static void pipes(void)
{
	/* A listing contains names that were created by other calls than open. */
	CHECK(mkdir("p", 0755) == 0 && mkfifo("p/pipe", 0600) == 0 && mkfifo("p/pipe", 0600) == -1);
	CHECK(mknod("p/node", S_IFIFO | 0600, 0) == 0 && mknod("p/file", S_IFREG | 0600, 0) == 0);
	CHECK(mkfifoat(AT_FDCWD, "p/other", 0600) == 0 && mknodat(AT_FDCWD, "p/socket", S_IFSOCK | 0600, 0) == 0);
	DIR *directory = opendir("p");
	while (readdir(directory))
		;
	CHECK(closedir(directory) == 0 && access("p/pipe", R_OK) == 0 && rename("p/other", "p/another") == 0);
	int reads = open("p/pipe", O_RDONLY | O_NONBLOCK), writes = open("p/pipe", O_WRONLY);
	CHECK(reads >= 0 && writes >= 0 && close(writes) == 0 && close(reads) == 0);
	/* Each process waits for the other end. */
	pid_t child = fork();
	if (child == 0) {
		int end = open("p/node", O_RDONLY);
		CHECK(end >= 0 && close(end) == 0);
		_exit(0);
	}
	int end = open("p/node", O_WRONLY), status;
	CHECK(end >= 0 && close(end) == 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK(unlink("p/pipe") == 0 && unlink("p/node") == 0 && unlink("p/another") == 0);
	CHECK(unlink("p/file") == 0 && remove("p/socket") == 0 && rmdir("p") == 0);
}

/* Inherited files whose names were removed, or that were created by a call that is not recorded. */
static void inherited(void)
{
	int gone = open("gone", O_RDWR | O_CREAT, 0600), memory = shm_open("/miot-replayed", O_RDWR | O_CREAT, 0600), status;
	CHECK(gone >= 0 && memory >= 0 && unlink("gone") == 0);
	pid_t child = fork();
	if (child == 0) {
		struct stat stat;
		CHECK(fstat(gone, &stat) == 0 && ftruncate(gone, 100) == 0 && pwrite(gone, buffer, 10, 5) == 10);
		CHECK(close(gone) == 0 && close(memory) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0 && shm_unlink("/miot-replayed") == 0);
}

int main(int count, char **words)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} modes[] = {{"threads", threads}, {"maps", maps}, {"aio", asynchronous}, {"descriptors", descriptors}, {"ranges", ranges}, {"sizes", sizes}, {"streams", streams}, {"pipes", pipes}, {"inherited", inherited}};
	CHECK(count == 3 && chdir(words[2]) == 0);
	for (unsigned i = 0; i < sizeof modes / sizeof *modes; i++)
		if (strcmp(words[1], modes[i].name) == 0) {
			modes[i].run();
			return 0;
		}
	return 2;
}
