"""Directory trees with known contents, and their figures, computed without MIOT.

  tree.py make DIR AS_OF    creates a tree and prints its figures, computed from its definition;
                            AS_OF: seconds since 1970
  tree.py many DIR FILES    creates many small files, some with names in two directories
  tree.py survey DIR AS_OF  prints the figures of any tree, computed from lstat
"""
import json, os, sys

def bin_of(value):
    return 0 if value == 0 else 1 << (value.bit_length() - 1)

class Figures:
    def __init__(self, as_of):
        self.as_of = as_of
        self.counts = dict.fromkeys(["names", "files", "further_links", "directories", "symlinks", "fifos", "sockets",
                                     "block_devices", "character_devices", "directory_capacity", "future"], 0)
        self.histograms = {name: {} for name in [
            "size", "capacity", "positive_overhead", "negative_overhead", "atime_age", "mtime_age", "ctime_age", "links",
            "directory_entries", "directory_size", "name_length", "symlink_target"]}

    def add(self, name, value, size=0, capacity=0):
        bin = self.histograms[name].setdefault(bin_of(value), [0, 0, 0, 0])
        for at, amount in enumerate([1, value, size, capacity]):
            bin[at] += amount

    def name(self, name):
        self.counts["names"] += 1
        self.add("name_length", len(name))

    def file(self, size, blocks, links, times):
        capacity = blocks * 512
        self.counts["files"] += 1
        self.add("size", size, size, capacity)
        self.add("capacity", capacity, size, capacity)
        if capacity > size:
            self.add("positive_overhead", capacity - size, size, capacity)
        if size > capacity:
            self.add("negative_overhead", size - capacity, size, capacity)
        for which, time in zip(["atime_age", "mtime_age", "ctime_age"], times):
            self.add(which, max(0, self.as_of - time) // 86400, size, capacity)
        self.counts["future"] += any(time > self.as_of for time in times)
        self.add("links", links, size, capacity)

    def directory(self, stat, entries):
        self.counts["directories"] += 1
        self.counts["directory_capacity"] += stat.st_blocks * 512
        self.add("directory_size", stat.st_size)
        self.add("directory_entries", entries)

    def symlink(self, target):
        self.counts["symlinks"] += 1
        self.add("symlink_target", len(target))

    def show(self):
        bins = {name: [[start, *bin] for start, bin in sorted(bins.items())] for name, bins in self.histograms.items()}
        print(json.dumps({**self.counts, "histograms": bins}))

def make(root, as_of):
    """Sizes, names, links, targets and times are those given here. Only blocks, sizes of
    directories and times of change are read from the file system."""
    figures, entries, day = Figures(as_of), {}, 86400
    os.mkdir(root)
    at = os.open(root, os.O_RDONLY)
    entries[root] = 0

    def directory(path):
        os.mkdir(os.path.join(root, path))
        named(path)
        entries[os.path.join(root, path)] = 0

    def named(path):
        figures.name(os.fsencode(os.path.basename(path)))
        entries[os.path.dirname(os.path.join(root, path))] += 1

    def file(path, size, atime, mtime, links=1, hole=False, more_names=()):
        full = os.path.join(root, path)
        with open(full, "wb") as out:
            if hole:
                out.truncate(size)
            else:
                out.write(b"x" * size)
                out.flush()
                os.fsync(out.fileno())
        named(path)
        for name in more_names:
            os.link(full, os.path.join(root, name))
            named(name)
        figures.counts["further_links"] += links - 1
        os.utime(full, (as_of - atime * day, as_of - mtime * day))
        stat = os.lstat(full)
        figures.file(size, stat.st_blocks, links, [as_of - atime * day, as_of - mtime * day, int(stat.st_ctime)])

    for size in [0, 1, 2, 3, 4, 1023, 1024, 4095, 4096, 4097, 65535, 65536, 1 << 20]:
        file(f"size-{size}", size, 0, size % 70)
    directory("links")
    directory("links/other")
    file("three", 5000, 100, 64, links=3, more_names=["links/b", "links/other/c"])
    file("sparse", 3 << 30, 63, 400, hole=True)
    file("future", 10, -10, -10)
    directory("empty")
    directory("full")
    for number in range(5000):
        file(f"full/{number}", number % 3, number % 9, 1)
    for length in [1, 127, 128, 255]:
        file("n" * length, 7, 1, 2)
    file(os.fsdecode(b"\xff\xfe not UTF-8 \n"), 8, 1, 2)
    for number, target in enumerate([b"x", b"/nowhere", b"t" * 200, b"size-1", b"."]):
        name = f"link-{number}"
        os.symlink(target, os.path.join(os.fsencode(root), name.encode()))
        named(name)
        figures.symlink(target)
    os.mkfifo(os.path.join(root, "fifo"))
    named("fifo")
    figures.counts["fifos"] += 1
    # A path far longer than PATH_MAX, therefore created step by step.
    stats = []
    depth, name = 60, "d" * 200
    here = os.open(root, os.O_RDONLY)
    for level in range(depth):
        os.mkdir(name, dir_fd=here)
        figures.name(name.encode())
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        stats.append(below)
        here = below
    bottom = os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here)
    os.write(bottom, b"deep")
    os.fsync(bottom)
    os.utime(bottom, (as_of, as_of))
    stat = os.fstat(bottom)
    figures.name(b"bottom")
    figures.file(4, stat.st_blocks, 1, [as_of, as_of, int(stat.st_ctime)])
    for descriptor in stats:
        figures.directory(os.fstat(descriptor), 1)
    entries[root] += 1
    for path, number in entries.items():
        figures.directory(os.lstat(path), number)
    figures.show()

def many(root, files):
    os.mkdir(root)
    for number in range(files):
        folder = f"{root}/{number // 5000}/{number // 250 % 20}"
        if number % 250 == 0:
            os.makedirs(folder, exist_ok=True)
        descriptor = os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY)
        os.truncate(descriptor, number % 7919)
        os.close(descriptor)
        # The names of a file are far apart.
        if number % 10 == 0 and number > files // 2:
            other = number - files // 2
            os.link(f"{folder}/{number}", f"{root}/{other // 5000}/{other // 250 % 20}/also-{number}")

def survey(root, as_of):
    figures, seen = Figures(as_of), set()
    device = os.lstat(root).st_dev

    def walk(path):
        names = os.listdir(path)
        figures.directory(os.lstat(path), len(names))
        for name in names:
            full = path + b"/" + name
            stat = os.lstat(full)
            if stat.st_dev != device:
                continue
            figures.name(name)
            kind = stat.st_mode & 0o170000
            if kind == 0o040000:
                walk(full)
            elif kind == 0o120000:
                figures.symlink(os.readlink(full))
            elif kind == 0o100000:
                if stat.st_nlink > 1 and stat.st_ino in seen:
                    figures.counts["further_links"] += 1
                    continue
                seen.add(stat.st_ino)
                times = [stat.st_atime_ns, stat.st_mtime_ns, stat.st_ctime_ns]
                figures.file(stat.st_size, stat.st_blocks, stat.st_nlink, [time // 10**9 for time in times])
            else:
                which = {0o010000: "fifos", 0o140000: "sockets", 0o060000: "block_devices", 0o020000: "character_devices"}
                figures.counts[which[kind]] += 1

    walk(os.fsencode(root))
    figures.show()

if sys.argv[1] == "make":
    make(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "many":
    many(sys.argv[2], int(sys.argv[3]))
else:
    survey(sys.argv[2], int(sys.argv[3]))
