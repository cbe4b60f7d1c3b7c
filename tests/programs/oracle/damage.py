"""Damages one file that holds events: flips bits, truncates it, removes it. Ledgers and side
tables are not damaged, because they identify the missing events."""

import glob
import os

KINDS = ("flipped", "cut", "removed")


def candidates(trace, spools):
    """Files of a trace directory and of spools that hold events."""
    patterns = [f"{trace}/events/part-*.parquet", f"{trace}/live/*.events.arrows"]
    patterns += [f"{spool}/*.spool" for spool in spools]
    return [path for pattern in patterns for path in sorted(glob.glob(pattern)) if os.path.getsize(path) > 0]


def damage(path, random):
    """Damages a file and returns a description of the damage."""
    size = os.path.getsize(path)
    kind = random.choice(KINDS)
    if kind == "removed":
        os.remove(path)
        return f"{path}: {size} bytes removed"
    place = random.randrange(size)
    if kind == "cut":
        os.truncate(path, place)
        return f"{path}: cut to {place} of {size} bytes"
    with open(path, "r+b") as file:
        for _ in range(random.choice((1, 1, 64))):
            file.seek(place)
            byte = file.read(1)
            file.seek(place)
            file.write(bytes([byte[0] ^ 1 << random.randrange(8)]))
            place = min(place + 1, size - 1)
    return f"{path}: bits flipped at {place} of {size} bytes"
