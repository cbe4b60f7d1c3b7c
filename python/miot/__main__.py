"""``python -m miot``: runs the tool ``miot``, or a script with instrumented libraries."""

import os
import sys

from ._instrument import main as run_instrumented
from ._programs import program


def main() -> None:
    """Replaces this process by the tool; ``instrument`` runs a script."""
    if sys.argv[1:2] == ["instrument"]:
        return run_instrumented(sys.argv[2:])
    path = program("miot")
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
