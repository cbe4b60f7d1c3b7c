"""Events as they arrive, compared with the trace that a running program leaves."""

import asyncio
import os
import socket
import subprocess
import sys
import time

import pytest

import miot

from conftest import python, run
from miot._programs import hook, program

PROGRAM = """
import os, sys, time
for number in range(40):
    file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
    os.write(file, b"x" * (number + 1))
    os.close(file)
    time.sleep(0.02)
"""


def until(condition, seconds=30):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def running(tmp_path):
    """A program that is traced at this moment: process, trace and file."""
    script, file, made = tmp_path / "program.py", tmp_path / "written", tmp_path / "trace"
    script.write_text(PROGRAM)
    command = [program("miot"), "run", "-q", "-o", made, "--", python(), script, file]
    process = subprocess.Popen(list(map(str, command)))
    until(lambda: (made / "miot-trace.json").exists())
    yield process, made, file
    process.wait(30)


@pytest.mark.filterwarnings("error::miot.LossWarning")
def test_events_of_a_running_program(running):
    process, made, file = running
    sizes, live = [], False
    with miot.open(made).follow(since="1h", op="write", path=str(file), timeout=5) as follow:
        for table in follow:
            sizes += table["result"]
            live = live or process.poll() is None
            assert set(table["path"]) == {str(file)}
            if len(sizes) == 40:
                break
    assert sizes == list(range(1, 41))
    assert live, "no event arrived while the program ran"
    process.wait(30)
    stored = miot.open(made).events(["result"], op="write", path=str(file)).to_arrow().column("result").to_pylist()
    assert sizes == stored


def test_events_of_a_running_program_asynchronously(running):
    process, made, file = running

    async def follow():
        sizes, ticks = [], 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        async for table in miot.open(made).follow(since="1h", op="write", path=str(file), timeout=5):
            sizes += table["result"]
            if len(sizes) == 40:
                break
        ticking.cancel()
        return sizes, ticks

    sizes, ticks = asyncio.run(follow())
    assert sizes == list(range(1, 41))
    assert ticks > 5, "the loop was blocked"


def test_follow_begins_with_new_events(directory):
    began = time.monotonic()
    assert list(miot.open(directory).follow(timeout=0.3)) == []
    assert 0.2 < time.monotonic() - began < 10
    assert miot.open(directory).follow().next(timeout=0.1) is None


def test_closed_follow_ends(directory):
    follow = miot.open(directory).follow()
    follow.close()
    assert list(follow) == []


@pytest.fixture
def server(tmp_path):
    """A log-server with a log-client: address, trace, directory of the node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, made, node = f"127.0.0.1:{port}", tmp_path / "cluster", tmp_path / "node"
    log = open(tmp_path / "log", "w")
    started = [subprocess.Popen([program("log-server"), "--listen", address, "--trace", made], stdout=log, stderr=log)]
    until(lambda: "log-server is ready" in (tmp_path / "log").read_text())
    words = ["--server", address, "--node", "n1", "--dir", node]
    started.append(subprocess.Popen([program("log-client"), *words], stdout=log, stderr=log))
    until(lambda: (node / "control").exists() or (node.exists() and any(node.iterdir())))
    yield address, made, node
    for process in reversed(started):
        process.terminate()
        process.wait(30)
    log.close()


def test_events_of_a_log_server(server, tmp_path):
    address, made, node = server
    opened = miot.open(address)
    file = tmp_path / "written"
    with opened.follow(op="write", path=str(file)) as follow:
        environment = {**os.environ, "LD_PRELOAD": hook(), "MIOT_DIR": str(node), "MIOT_SECCOMP": "record"}
        subprocess.run([python(), "-c", PROGRAM, str(file)], env=environment, check=True)
        sizes = []
        until(lambda: sizes.extend((follow.next(timeout=0.2) or {"result": []})["result"]) or len(sizes) >= 40)
    assert sizes == list(range(1, 41))
    assert follow.next(timeout=1) is None
    with pytest.raises(miot.Error, match="only be followed"):
        opened.stat()
    live = miot.open(made).events(["result"], op="write", path=str(file)).to_arrow()
    assert live.column("result").to_pylist() == sizes


def test_no_log_server():
    with pytest.raises(miot.Error, match="cannot connect to a log-server at 127.0.0.1:1"):
        miot.open("127.0.0.1:1").follow()
