"""Marks the regions of programs that use known libraries; see :func:`instrument`."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Callable

from ._errors import Error, OptionError


def _torch() -> None:
    from . import _torch

    _torch.instrument()


#: Functions that change a library, by its name.
_LIBRARIES: dict[str, Callable[[], None]] = {"torch": _torch}


def instrument(*libraries: str) -> None:
    """Marks the regions of programs that use these libraries, such as ``"torch"``, from now on.

    It replaces functions of the library by functions that do the same within a :class:`region`.
    Without a preloaded tracer it changes nothing. Call it once, before the first epoch, or run
    ``python -m miot instrument torch train.py`` to leave the program as it is.

    ``torch``: an iteration over a ``DataLoader`` is a region ``epoch``; within it, ``fetch`` is the wait
    for a batch and ``step`` the use of the batch by the loop. ``forward`` is a call of a ``Module``
    outside of other calls, ``backward`` one of ``backward()``, ``optimizer`` one of
    ``Optimizer.step()``, ``checkpoint`` one of ``torch.save()``, ``restart`` one of ``torch.load()``.

    Raises :class:`OptionError` for a library that is not known, and ``ImportError`` if it is not
    installed.
    """
    from . import _miot

    for library in libraries:
        if library not in _LIBRARIES:
            raise OptionError(f"instrument {library}: no such library; there are {', '.join(_LIBRARIES)}")
    for library in libraries:
        if _miot.preloaded():
            _LIBRARIES[library]()


def main(arguments: list[str]) -> None:
    """Runs a script with instrumented libraries: ``python -m miot instrument torch train.py ...``."""
    from . import _miot

    if len(arguments) < 2 or arguments[0].startswith("-"):
        raise SystemExit(
            "usage: python -m miot instrument LIBRARY[,LIBRARY] SCRIPT [ARGUMENT...]\n"
            "Runs the script with regions of these libraries: "
            + ", ".join(_LIBRARIES)
            + "\nExample: miot run -- python -m miot instrument torch train.py --epochs 3"
        )
    libraries, script, *rest = arguments
    if not os.path.isfile(script):
        raise SystemExit(f"miot instrument: {script}: no such file; expected the path of a Python script")
    try:
        instrument(*libraries.split(","))
    except Error as error:
        raise SystemExit(f"miot instrument: {error}") from None
    if not _miot.preloaded():
        print("miot instrument: no regions are recorded: run this under `miot run --`", file=sys.stderr)
    sys.argv = [script, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
