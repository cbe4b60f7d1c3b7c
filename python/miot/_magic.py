"""``%%miot``: traces a cell of a notebook; ``%load_ext miot`` defines it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from typing import Any

from ._errors import Error, OptionError
from ._programs import program
from ._trace import Trace

_USAGE = "expected %%miot [--shell] [-o DIR]"


def cell_magic(line: str, cell: str) -> Trace:
    """Runs a cell in a process of its own under ``miot run``, prints its output and returns the trace.

    ``%%miot`` runs the cell with this Python, without the names of the notebook; ``%%miot --shell``
    with ``sh``. ``-o DIR`` is the directory of the trace, by default a new temporary one. A cell that
    fails raises :class:`Error`; its trace stays.
    """
    directory, interpreter = None, [sys.executable]
    words = shlex.split(line)
    while words:
        word = words.pop(0)
        if word == "--shell":
            interpreter = ["sh"]
        elif word == "-o" and words:
            directory = words.pop(0)
        else:
            raise OptionError(f"%%miot {line}: {word} is not an option; {_USAGE}")
    folder = tempfile.mkdtemp(prefix="miot-")
    script = os.path.join(folder, "cell")
    with open(script, "w") as file:
        file.write(cell)
    directory = directory or os.path.join(folder, "trace")
    command = [program("miot"), "run", "-q", "-o", directory, "--", *interpreter, script]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    output = process.stdout
    if output is None:
        raise Error("the output of the cell is not a pipe")
    try:
        for text in output:
            print(text, end="", flush=True)
    except BaseException:
        process.terminate()
        raise
    finally:
        output.close()
        code = process.wait()
    if code != 0:
        raise Error(f"the cell ended with exit code {code}; its trace, if there is one, is {directory}")
    return Trace([directory])


def load_ipython_extension(ipython: Any) -> None:
    """Defines ``%%miot``."""
    ipython.register_magic_function(cell_magic, "cell", "miot")
