/* A worker of the benchmark. It executes commands from its standard input, so that the driver
 * can alternate between workers. A program that includes this file defines setup() and
 * operations().
 *   run OPERATIONS THREADS
 *       prints nanoseconds of CPU time of all threads, and nanoseconds of wall time
 *   paced RATE MILLISECONDS THREADS
 *       makes RATE operations a second, each thread waking every millisecond; prints the number
 *       of operations, CPU time, wall time, most operations of a thread between two sleeps
 *   step OPERATIONS
 *       prints "done"; the operations run between two int3, for single-stepping */
#ifndef WORKER_H
#define WORKER_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void setup(int argc, char **argv);
static void operations(uint64_t count);

static pthread_barrier_t start_line;

static inline uint64_t nanoseconds(clockid_t clock)
{
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct share {
	uint64_t count, cpu_ns, rate, ticks, burst;
};

static void *run_share(void *arg)
{
	struct share *share = arg;
	operations(1);
	pthread_barrier_wait(&start_line);
	uint64_t before = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
	operations(share->count);
	share->cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - before;
	return NULL;
}

static void run(uint64_t count, unsigned threads)
{
	struct share shares[64] = { { 0, 0, 0, 0, 0 } };
	pthread_t ids[64];
	if (threads < 1 || threads > 64)
		exit(2);
	pthread_barrier_init(&start_line, NULL, threads);
	uint64_t before = nanoseconds(CLOCK_MONOTONIC), cpu_ns = 0;
	for (unsigned i = 0; i < threads; i++) {
		shares[i].count = count / threads;
		if (i > 0 && pthread_create(&ids[i], NULL, run_share, &shares[i]) != 0)
			exit(2);
	}
	run_share(&shares[0]);
	for (unsigned i = 1; i < threads; i++)
		pthread_join(ids[i], NULL);
	for (unsigned i = 0; i < threads; i++)
		cpu_ns += shares[i].cpu_ns;
	uint64_t wall_ns = nanoseconds(CLOCK_MONOTONIC) - before;
	pthread_barrier_destroy(&start_line);
	printf("%llu %llu\n", (unsigned long long)cpu_ns, (unsigned long long)wall_ns);
}

static void *run_paced(void *arg)
{
	struct share *share = arg;
	operations(1);
	pthread_barrier_wait(&start_line);
	uint64_t before = nanoseconds(CLOCK_THREAD_CPUTIME_ID), start = nanoseconds(CLOCK_MONOTONIC);
	for (uint64_t tick = 1, done = 0, slept_at = 0; tick <= share->ticks; tick++) {
		uint64_t due = share->rate * tick / 1000, next = start + tick * 1000000u;
		operations(due - done);
		done = due;
		if (done - slept_at > share->burst)
			share->burst = done - slept_at;
		if (nanoseconds(CLOCK_MONOTONIC) < next) {
			struct timespec at = { (time_t)(next / 1000000000u), (long)(next % 1000000000u) };
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
			slept_at = done;
		}
		share->count = done + 1;
	}
	share->cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - before;
	return NULL;
}

static void paced(uint64_t rate, uint64_t milliseconds, unsigned threads)
{
	struct share shares[64] = { { 0, 0, 0, 0, 0 } };
	pthread_t ids[64];
	uint64_t before = nanoseconds(CLOCK_MONOTONIC), cpu_ns = 0, count = 0, burst = 0;
	if (threads < 1 || threads > 64)
		exit(2);
	pthread_barrier_init(&start_line, NULL, threads);
	for (unsigned i = 0; i < threads; i++) {
		shares[i].rate = rate / threads + (i < rate % threads);
		shares[i].ticks = milliseconds;
		if (pthread_create(&ids[i], NULL, run_paced, &shares[i]) != 0)
			exit(2);
	}
	for (unsigned i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		cpu_ns += shares[i].cpu_ns;
		count += shares[i].count;
		if (shares[i].burst > burst)
			burst = shares[i].burst;
	}
	pthread_barrier_destroy(&start_line);
	printf("%llu %llu %llu %llu\n", (unsigned long long)count, (unsigned long long)cpu_ns,
	       (unsigned long long)(nanoseconds(CLOCK_MONOTONIC) - before), (unsigned long long)burst);
}

int main(int argc, char **argv)
{
	char line[128];
	setup(argc, argv);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		unsigned long long count, milliseconds;
		unsigned threads;
		if (sscanf(line, "run %llu %u", &count, &threads) == 2) {
			run(count, threads);
		} else if (sscanf(line, "paced %llu %llu %u", &count, &milliseconds, &threads) == 3) {
			paced(count, milliseconds, threads);
		} else if (sscanf(line, "step %llu", &count) == 1) {
			operations(1000);
			__asm__ volatile("int3" ::: "memory");
			operations(count);
			__asm__ volatile("int3" ::: "memory");
			puts("done");
		} else {
			return 2;
		}
		fflush(stdout);
	}
	return 0;
}

#endif
