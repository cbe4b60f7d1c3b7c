"""A job that works on a shared directory.

job.py write DIR [--seconds S]    writes 1 MiB ten times a second
job.py read DIR [--seconds S]     reads 256 KiB forty times a second
job.py poll DIR [--parts P] [--stats N] [--every S]
    waits for P parts of another job: queries the attributes of each part every S seconds,
    N queries in all

Each job works on files of its own, named after SLURM_JOB_ID.
"""
import argparse
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("kind", choices=["write", "read", "poll"])
parser.add_argument("dir")
parser.add_argument("--seconds", type=float, default=20)
parser.add_argument("--parts", type=int, default=200)
parser.add_argument("--stats", type=int, default=100_000)
parser.add_argument("--every", type=float, default=0.04)
args = parser.parse_args()
place = os.path.join(args.dir, "job-" + os.environ.get("SLURM_JOB_ID", "0"))
os.makedirs(place, exist_ok=True)
end = time.monotonic() + args.seconds

if args.kind == "write":
    file = os.open(os.path.join(place, "result"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    while time.monotonic() < end:
        os.write(file, bytes(1 << 20))
        time.sleep(0.1)
elif args.kind == "read":
    file = os.open(os.path.join(place, "input"), os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, 1 << 30)
    offset = 0
    while time.monotonic() < end:
        os.pread(file, 256 << 10, offset)
        offset = (offset + (256 << 10)) % (1 << 30)
        time.sleep(0.025)
else:
    parts = [os.path.join(place, f"part-{number:03}") for number in range(args.parts)]
    for part in parts:
        open(part, "w").close()
    for query in range(args.stats):
        # A part is ready when it has data. None of them ever is.
        os.stat(parts[query % args.parts])
        if query % args.parts == args.parts - 1:
            time.sleep(args.every)
