"""Takes turns with another process through two pipes: turns.py FROM TO TURNS first|second.

Pipes are not traced, so each turn writes one byte to the file FROM.log."""

import os
import sys

came, goes, turns, place = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
# Both processes open the pipes in the same order, so that neither blocks forever.
if place == "first":
    to = os.open(goes, os.O_WRONLY)
    back = os.open(came, os.O_RDONLY)
    os.write(to, b"x")
else:
    back = os.open(came, os.O_RDONLY)
    to = os.open(goes, os.O_WRONLY)
log = os.open(came + ".log", os.O_WRONLY | os.O_CREAT, 0o600)
for turn in range(turns):
    os.read(back, 1)
    os.pwrite(log, b"x", turn)
    if place == "second" or turn + 1 < turns:
        os.write(to, b"x")
