"""``python -m miot``: runs the tool ``miot``."""

import os
import sys

from ._programs import program


def main() -> None:
    """Replaces this process by the tool."""
    path = program("miot")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
