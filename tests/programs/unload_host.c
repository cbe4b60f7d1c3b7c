/* Opens a plug-in, records in it on a thread, unloads it, and lets the thread end. */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

static int (*work)(void);
static sem_t worked, unloaded;

static void *run(void *unused)
{
    printf("recorded %d\n", work());
    sem_post(&worked);
    sem_wait(&unloaded);
    return unused;
}

int main(int count, char **words)
{
    void *plugin = dlopen(words[1], RTLD_NOW);
    if (!plugin) {
        puts(dlerror());
        return 1;
    }
    if (count > 2) {
        /* A library without any call also stays loaded. */
        dlclose(plugin);
        puts(dlopen(words[1], RTLD_NOW | RTLD_NOLOAD) ? "stays" : "gone");
        return 0;
    }
    *(void **)&work = dlsym(plugin, "work");
    sem_init(&worked, 0, 0);
    sem_init(&unloaded, 0, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, run, NULL);
    sem_wait(&worked);
    dlclose(plugin);
    sem_post(&unloaded);
    pthread_join(thread, NULL);
    puts("fine");
    return 0;
}
