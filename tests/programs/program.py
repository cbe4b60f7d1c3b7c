"""Opens, reads and maps files in threads and in processes: always the same calls on the same
files."""

import mmap
import multiprocessing
import os
import threading

SIZE = 100_000


def read_into():
    buffer = bytearray(4096)
    total = 0
    with open("input", "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    assert total == SIZE, total


def text():
    with open("lines.txt", "w") as file:
        for i in range(2000):
            file.write(f"line {i}\n")
    with open("lines.txt") as file:
        assert sum(1 for _ in file) == 2000
        file.seek(0)
        assert file.readline() == "line 0\n"


def mapped():
    with open("input", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[5:10] = b"hello"
        memory.flush()
        assert memory.find(b"hello") >= 0


def vectors():
    fd = os.open("vectors", os.O_RDWR | os.O_CREAT, 0o600)
    assert os.writev(fd, [b"abc", b"defg"]) == 7
    assert os.pwritev(fd, [b"1", b"23"], 100) == 3
    assert os.preadv(fd, [bytearray(2), bytearray(5)], 0) == 7
    assert os.lseek(fd, 0, os.SEEK_END) == 103
    other = os.dup(fd)
    os.ftruncate(other, 50)
    os.posix_fallocate(fd, 0, 200)
    os.fsync(fd)
    os.close(fd)
    os.close(other)


def names():
    os.makedirs("d/e")
    for i in range(10):
        open(f"d/e/{i}", "w").close()
    os.rename("d/e/0", "d/zero")
    os.link("d/zero", "d/hard")
    os.symlink("zero", "d/soft")
    assert os.readlink("d/soft") == "zero"
    assert sorted(os.listdir("d")) == ["e", "hard", "soft", "zero"]
    os.chmod("d/zero", 0o640)
    os.utime("d/zero", ns=(1, 2))
    for name in os.scandir("d/e"):
        os.unlink(name.path)
    os.rmdir("d/e")
    try:
        os.stat("d/none")
    except FileNotFoundError:
        pass


def worker(number):
    fd = os.open(f"worker{number}", os.O_RDWR | os.O_CREAT, 0o600)
    for i in range(50):
        os.pwrite(fd, bytes([number]) * 512, (i * 7 % 50) * 512)
    for i in range(50):
        assert os.pread(fd, 512, i * 512) == bytes([number]) * 512
    os.close(fd)


def in_threads():
    threads = [threading.Thread(target=worker, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_processes():
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=worker, args=(10 + i,)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0


read_into()
text()
mapped()
vectors()
names()
in_threads()
in_processes()
print("done")
