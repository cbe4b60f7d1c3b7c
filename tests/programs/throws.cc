/* Exceptions of a callback pass through a function of libc and through its hook. */
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <stdexcept>
#include <unistd.h>

static int choose(const struct dirent *) { throw std::runtime_error("out of the callback"); }

int main() {
    struct dirent **list;
    for (int i = 0; i < 3; i++)
        try {
            std::printf("%d\n", scandir("/", &list, choose, alphasort));
        } catch (const std::exception &error) {
            std::puts(error.what());
        }
    int fd = open("after", O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < 10; i++)
        if (write(fd, "x", 1) != 1)
            return 1;
    return close(fd);
}
