"""Data loader of a training: worker threads read samples, the main thread computes on batches.

loader.py make DIR [--samples N]
    writes N samples of 16 KiB, one file each, and the same samples in shards
loader.py evict DIR
    removes the data from the page cache, as if it were larger than the memory
loader.py train DIR [--from files|shards] [--workers N] [--batch N] [--compute SECONDS]
    reads all samples once and sleeps for --compute seconds in each step, in place of a GPU;
    prints how long it waited for batches
"""
import argparse
import os
import queue
import random
import threading
import time

SAMPLE = 16 * 1024
IN_SHARD = 256  # samples: a shard is 4 MiB


def names(folder):
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]


def make(args):
    files, shards = os.path.join(args.dir, "files"), os.path.join(args.dir, "shards")
    os.makedirs(files)
    os.makedirs(shards)
    for first in range(0, args.samples, IN_SHARD):
        with open(os.path.join(shards, f"{first // IN_SHARD:04}"), "wb") as shard:
            for number in range(first, min(first + IN_SHARD, args.samples)):
                sample = os.urandom(SAMPLE)
                shard.write(sample)
                with open(os.path.join(files, f"{number:06}"), "wb") as file:
                    file.write(sample)


def read(path):
    """Reads a whole file with one request."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)


def worker(paths, batches, size):
    """Reads the files of `paths` and puts batches of `size` samples into `batches`, then None."""
    samples = []
    while True:
        try:
            data = read(paths.get_nowait())
        except queue.Empty:
            break
        chunk = [data[at : at + SAMPLE] for at in range(0, len(data), SAMPLE)]
        random.shuffle(chunk)
        samples += chunk
        while len(samples) >= size:
            batches.put(samples[:size])
            samples = samples[size:]
    if samples:
        batches.put(samples)
    batches.put(None)


def evict(args):
    os.sync()  # A page that is not on the disk yet cannot be removed.
    for path in names(os.path.join(args.dir, "files")) + names(os.path.join(args.dir, "shards")):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def train(args):
    paths = names(os.path.join(args.dir, getattr(args, "from")))
    random.shuffle(paths)
    order = queue.SimpleQueue()
    for path in paths:
        order.put(path)
    batches = queue.Queue(maxsize=2 * args.workers)
    for _ in range(args.workers):
        threading.Thread(target=worker, args=(order, batches, args.batch), daemon=True).start()
    begun, waited, steps, running = time.monotonic(), 0.0, 0, args.workers
    while running:
        asked = time.monotonic()
        batch = batches.get()
        waited += time.monotonic() - asked
        if batch is None:
            running -= 1
            continue
        time.sleep(args.compute)
        steps += 1
    total = time.monotonic() - begun
    print(f"{steps} steps in {total:.2f} s, waited for data {waited:.2f} s ({100 * waited / total:.0f} %)")


parser = argparse.ArgumentParser()
commands = parser.add_subparsers(required=True)
command = commands.add_parser("make")
command.add_argument("dir")
command.add_argument("--samples", type=int, default=16384)
command.set_defaults(run=make)
command = commands.add_parser("evict")
command.add_argument("dir")
command.set_defaults(run=evict)
command = commands.add_parser("train")
command.add_argument("dir")
command.add_argument("--from", choices=["files", "shards"], default="files")
command.add_argument("--workers", type=int, default=1)
command.add_argument("--batch", type=int, default=128)
command.add_argument("--compute", type=float, default=0.004)
command.set_defaults(run=train)
arguments = parser.parse_args()
arguments.run(arguments)
