/* A program of libgfapi: `gfapi VOLUME HOST`. Two threads each write and read a file, one of
 * them with asynchronous calls. Then names are created, looked up and removed. Prints the number
 * of blocks that a thread moves. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glusterfs/api/glfs.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 8192, BLOCKS = 40 };

static glfs_t *volume;

static void check(int good, const char *what)
{
    if (!good) {
        perror(what);
        exit(1);
    }
}

static void written(glfs_fd_t *fd, ssize_t result, struct glfs_stat *pre, struct glfs_stat *post, void *data)
{
    (void)fd, (void)pre, (void)post;
    check(result == BLOCK, "glfs_pwrite_async");
    sem_post(data);
}

static void *work(void *name)
{
    int async = strcmp(name, "/async") == 0;
    char block[BLOCK], back[BLOCK];
    sem_t done;
    glfs_fd_t *fd = glfs_creat(volume, name, O_RDWR, 0644);

    check(fd != NULL, "glfs_creat");
    sem_init(&done, 0, 0);
    for (int i = 0; i < BLOCKS; i++) {
        memset(block, 'a' + i % 26, BLOCK);
        if (async) {
            check(glfs_pwrite_async(fd, block, BLOCK, (off_t)i * BLOCK, 0, written, &done) == 0, "glfs_pwrite_async");
            sem_wait(&done);
        } else {
            check(glfs_pwrite(fd, block, BLOCK, (off_t)i * BLOCK, 0, NULL, NULL) == BLOCK, "glfs_pwrite");
        }
    }
    check(glfs_fsync(fd, NULL, NULL) == 0, "glfs_fsync");
    for (int i = 0; i < BLOCKS; i++) {
        memset(block, 'a' + i % 26, BLOCK);
        check(glfs_pread(fd, back, BLOCK, (off_t)i * BLOCK, 0, NULL) == BLOCK, "glfs_pread");
        check(memcmp(block, back, BLOCK) == 0, "what was written is read");
    }
    check(glfs_close(fd) == 0, "glfs_close");
    return NULL;
}

int main(int argc, char **argv)
{
    char *names[] = {"/plain", "/async"};
    pthread_t threads[2];
    struct stat found;
    glfs_fd_t *dir;
    int entries = 0;

    check(argc == 3, "gfapi VOLUME HOST");
    volume = glfs_new(argv[1]);
    check(volume && glfs_set_volfile_server(volume, "tcp", argv[2], 24007) == 0, "glfs_set_volfile_server");
    check(glfs_set_logging(volume, "/dev/stderr", 4) == 0 && glfs_init(volume) == 0, "glfs_init");
    for (int i = 0; i < 2; i++)
        check(pthread_create(&threads[i], NULL, work, names[i]) == 0, "pthread_create");
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    check(glfs_mkdir(volume, "/dir", 0755) == 0 && glfs_rename(volume, "/plain", "/dir/moved") == 0, "glfs_rename");
    check(glfs_stat(volume, "/dir/moved", &found) == 0 && found.st_size == BLOCK * BLOCKS, "glfs_stat");
    check(glfs_symlink(volume, "moved", "/dir/link") == 0, "glfs_symlink");
    check(glfs_truncate(volume, "/dir/moved", 5) == 0, "glfs_truncate");
    check((dir = glfs_opendir(volume, "/dir")) != NULL, "glfs_opendir");
    while (glfs_readdir(dir))
        entries++;
    check(entries == 4 && glfs_closedir(dir) == 0, "glfs_readdir");
    check(glfs_unlink(volume, "/dir/none") == -1 && errno == ENOENT, "glfs_unlink of nothing");
    check(glfs_unlink(volume, "/dir/link") == 0 && glfs_unlink(volume, "/dir/moved") == 0, "glfs_unlink");
    check(glfs_rmdir(volume, "/dir") == 0, "glfs_rmdir");
    check(glfs_fini(volume) == 0, "glfs_fini");
    printf("%d\n", BLOCKS);
    return 0;
}
