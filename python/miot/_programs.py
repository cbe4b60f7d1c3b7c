"""Finds the programs that the package brings."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sysconfig

from ._errors import Error


def program(name: str) -> str:
    """Returns the path of a program of MIOT, such as ``miot`` or ``log-client``.

    It is searched in the directory that ``MIOT_BIN_DIR`` names, among the installed files of this
    package, in the directory of scripts of this Python, and in ``PATH``.
    """
    folders = []
    if os.environ.get("MIOT_BIN_DIR"):
        folders.append(os.environ["MIOT_BIN_DIR"])
    try:
        files = importlib.metadata.files("miot") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    folders += [os.path.dirname(str(file.locate())) for file in files if file.name == name]
    folders.append(sysconfig.get_path("scripts"))
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, name))
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    found = shutil.which(name)
    if found is None:
        raise Error(
            f"the program {name} is not beside the package miot nor in PATH: install the wheel "
            "(pip install miot), or set MIOT_BIN_DIR to its directory"
        )
    return found


def hook() -> str:
    """Returns the path of the library that `miot run` preloads."""
    binary = os.path.dirname(program("miot"))
    folders = [os.environ.get("MIOT_HOOK_DIR", ""), binary, os.path.join(binary, "../lib/miot")]
    for folder in folders:
        path = os.path.join(folder, "libmiot_posix.so")
        if os.path.isfile(path):
            return os.path.realpath(path)
    raise Error(f"libmiot_posix.so is not in any of {folders}: install the wheel (pip install miot)")
