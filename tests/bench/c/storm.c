/* A metadata storm. Processes share FILES empty files in a hundred folders. Each process creates
 * all of its files, gets the size of each, and removes each.
 *   storm FOLDER FILES PROCESSES */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FOLDERS = 100 };

static void check(int answer, const char *what)
{
	if (answer < 0) {
		perror(what);
		exit(2);
	}
}

static void storm(long files, long processes, long own)
{
	char name[64];
	struct stat facts;
	for (int step = 0; step < 3; step++)
		for (long file = own; file < files; file += processes) {
			snprintf(name, sizeof name, "d%02ld/file-%06ld", file % FOLDERS, file);
			if (step == 0) {
				int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
				check(fd, name);
				check(close(fd), name);
			} else if (step == 1) {
				check(stat(name, &facts), name);
			} else {
				check(unlink(name), name);
			}
		}
}

int main(int argc, char **argv)
{
	char name[64];
	if (argc != 4 || chdir(argv[1]) != 0)
		return 2;
	long files = atol(argv[2]), processes = atol(argv[3]);
	for (int folder = 0; folder < FOLDERS; folder++) {
		snprintf(name, sizeof name, "d%02d", folder);
		check(mkdir(name, 0700), name);
	}
	for (long own = 1; own < processes; own++) {
		pid_t child = fork();
		check(child, "fork");
		if (child == 0) {
			storm(files, processes, own);
			return 0;
		}
	}
	storm(files, processes, 0);
	int status, failed = 0;
	while (wait(&status) > 0)
		failed |= status;
	check(failed ? -1 : 0, "a process of the storm");
	for (int folder = 0; folder < FOLDERS; folder++) {
		snprintf(name, sizeof name, "d%02d", folder);
		check(rmdir(name), name);
	}
	return 0;
}
