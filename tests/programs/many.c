/* many PROCESSES THREADS WRITES: every thread writes the blocks of its own file in a fixed,
 * shuffled order. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int process, writes;

static void *work(void *argument) {
    char name[64], block[16] = {0};
    snprintf(name, sizeof name, "block-%d-%ld", process, (long)argument);
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    for (long n = 0; n < writes; n++)
        if (pwrite(fd, block, sizeof block, n * 7 % writes * sizeof block) != sizeof block)
            abort();
    close(fd);
    return NULL;
}

int main(int argc, char **argv) {
    int processes = atoi(argv[1]), threads = atoi(argv[2]);
    writes = atoi(argv[3]);
    for (process = 0; process < processes; process++) {
        if (fork() == 0) {
            pthread_t thread[threads];
            for (long t = 0; t < threads; t++)
                pthread_create(&thread[t], NULL, work, (void *)t);
            for (int t = 0; t < threads; t++)
                pthread_join(thread[t], NULL);
            return 0;
        }
    }
    int status, failed = 0;
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
