"""Traces for the tests: a program with known requests, traced by the programs of the installed package."""

import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import miot
from miot._programs import program

#: Files, requests and sizes of the program below.
FILES, WRITES, WRITE_BYTES, READ_BYTES = 3, 16, 65536, 8192

PROGRAM = textwrap.dedent(
    f"""
    import os, sys
    folder = sys.argv[1]
    for number in range({FILES}):
        file = os.open(f"{{folder}}/file-{{number}}", os.O_CREAT | os.O_WRONLY)
        for _ in range({WRITES}):
            os.write(file, b"x" * {WRITE_BYTES})
        os.close(file)
        if os.fork() == 0:
            file = os.open(f"{{folder}}/file-{{number}}", os.O_RDONLY)
            while os.read(file, {READ_BYTES}):
                pass
            os._exit(0)
        os.wait()
    """
)


def python() -> str:
    """The interpreter itself: `sys.executable` may be a script."""
    return os.path.realpath(sys.executable)


def run(*words, **options):
    """Runs a program of MIOT and returns its output."""
    command = [program(words[0]), *map(str, words[1:])]
    ended = subprocess.run(command, capture_output=True, text=True, **options)
    assert ended.returncode == 0, f"{command}: {ended.returncode}\n{ended.stderr}"
    return ended.stdout


def tool(*words):
    """Returns the JSON output of a command of the tool."""
    return json.loads(run("miot", *words, "--format", "json"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Folder of the traced program's files."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def directory(tmp_path_factory, data):
    """Directory of a trace of the program."""
    made = tmp_path_factory.mktemp("trace") / "trace"
    script = tmp_path_factory.mktemp("script") / "program.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "MIOT_JOB": "4711", "MIOT_RANK": "3"}
    run("miot", "run", "-q", "-o", made, "--", python(), script, data, env=environment)
    return made


@pytest.fixture
def trace(directory):
    return miot.open(directory)


@pytest.fixture
def damaged(directory, tmp_path):
    """A copy of the trace with one damaged page of events."""
    copy = tmp_path / "damaged"
    shutil.copytree(directory, copy)
    part = next((copy / "events").glob("*.parquet"))
    with open(part, "r+b") as file:
        file.seek(os.path.getsize(part) // 3)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    return copy
