"""Notes of `numbered.c`: the writes of each thread of a program, and their times."""

from dataclasses import dataclass, field

import numpy

MOST_LIVES = 64
SAMPLES = 256
# Lengths of writes.
LENGTHS = 61

SAMPLE = numpy.dtype([("number", "u8"), ("before", "i8"), ("after", "i8")])
LIFE = numpy.dtype([("begun", "u8"), ("done", "u8"), ("tid", "u8"), ("filling", "u8"), ("samples", SAMPLE, SAMPLES)])
BYTES = MOST_LIVES * LIFE.itemsize


@dataclass
class Program:
    """A program that has ended, and its threads that made a request."""

    number: int
    node: str
    pid: int
    # (life, tid, requests begun, requests done)
    lives: list = field(default_factory=list)
    # (life, number, before, after)
    samples: list = field(default_factory=list)


def read(path, number, node, pid):
    """Reads the notes of a program."""
    program = Program(number, node, pid)
    for life, notes in enumerate(numpy.fromfile(path, LIFE, MOST_LIVES)):
        if notes["begun"] == 0:
            continue
        program.lives.append((life, int(notes["tid"]), int(notes["begun"]), int(notes["done"])))
        for place, (sampled, before, after) in enumerate(notes["samples"].tolist()):
            if sampled > 0 and place + 1 != notes["filling"]:
                program.samples.append((life, sampled, before, after))
    return program
