/* A metadata storm: creates so many empty files in a hundred folders, asks for the size of each, removes each.
 *
 *   storm FOLDER FILES
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FOLDERS = 100 };

static void check(int answer, const char *what)
{
	if (answer < 0) {
		perror(what);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	char name[64];
	struct stat facts;
	if (argc != 3 || chdir(argv[1]) != 0)
		return 2;
	long files = atol(argv[2]);
	for (int folder = 0; folder < FOLDERS; folder++) {
		snprintf(name, sizeof name, "d%02d", folder);
		check(mkdir(name, 0700), name);
	}
	for (int step = 0; step < 3; step++)
		for (long file = 0; file < files; file++) {
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
	for (int folder = 0; folder < FOLDERS; folder++) {
		snprintf(name, sizeof name, "d%02d", folder);
		check(rmdir(name), name);
	}
	return 0;
}
