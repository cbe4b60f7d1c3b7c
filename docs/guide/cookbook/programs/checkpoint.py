"""Program that computes and writes a checkpoint after each step.

checkpoint.py DIR [--steps N] [--size BYTES] [--piece BYTES] [--sync each|end]

It writes --size bytes in pieces of --piece bytes. With `--sync each` it makes each piece durable,
with `--sync end` the whole checkpoint once. It computes (here: sleeps) for 0.2 s in each step. Each
task of a Slurm job writes checkpoints of its own.
"""
import argparse
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("dir")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--size", type=int, default=8 << 20)
parser.add_argument("--piece", type=int, default=4096)
parser.add_argument("--sync", choices=["each", "end"], default="each")
args = parser.parse_args()

os.makedirs(args.dir, exist_ok=True)
state = os.urandom(args.size)
writing = 0.0
rank = os.environ.get("SLURM_PROCID", "0")
for step in range(args.steps):
    time.sleep(0.2)
    begun = time.monotonic()
    name = os.path.join(args.dir, f"checkpoint-{rank}-{step % 2}")
    file = os.open(name + ".new", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for at in range(0, args.size, args.piece):
        os.write(file, state[at : at + args.piece])
        if args.sync == "each":
            os.fdatasync(file)
    os.fdatasync(file)
    os.close(file)
    os.rename(name + ".new", name)
    writing += time.monotonic() - begun
print(f"{args.steps} checkpoints of {args.size >> 20} MiB, {writing / args.steps:.3f} s each")
