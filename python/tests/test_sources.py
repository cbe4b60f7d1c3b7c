"""Traces of several log-servers as one."""

import os
import socket
import subprocess

import pytest

import miot
from conftest import python, tool
from miot._programs import program
from test_follow import hook, until

#: Sizes of the writes of the program.
SIZES = list(range(1, 41))
PROGRAM = f"""
import os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for size in {SIZES}:
    os.write(file, b"x" * size)
"""


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def traced(folder, partition):
    """Runs a program on a node of a cluster whose log-server writes this partition; returns the trace."""
    address, made, node = f"127.0.0.1:{free_port()}", folder / f"p{partition}", folder / f"node{partition}"
    log = folder / f"log{partition}"
    server = ["--listen", address, "--trace", made, "--http", "off", "--partition", partition, "--cluster", "test"]
    client = ["--server", address, "--node", f"n{partition}", "--dir", node, "--http", "off"]
    started = []
    with open(log, "w") as output:
        try:
            for name, words in [("log-server", server), ("log-client", client)]:
                started.append(subprocess.Popen([program(name), *map(str, words)], stdout=output, stderr=output))
                if name == "log-server":
                    until(lambda: "log-server is ready" in log.read_text())
            until(lambda: node.exists() and any(node.iterdir()))
            environment = {**os.environ, "LD_PRELOAD": hook(), "MIOT_DIR": str(node)}
            command = [python(), "-c", PROGRAM, str(folder / f"written{partition}")]
            subprocess.run(command, env=environment, check=True)
        finally:
            for process in reversed(started):
                process.terminate()
                assert process.wait(60) == 0, log.read_text()
    return made


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    return [traced(folder, partition) for partition in (0, 1)]


def test_traces_of_a_cluster_are_one(members):
    trace = miot.open(members)
    together = ",".join(map(str, members))
    assert trace.dir == together and trace.lossless
    rows = trace.events(["time", "result", "node"], op="write", path="**/written*").to_arrow().to_pylist()
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert {row["node"] for row in rows} == {"n0", "n1"}
    assert sorted(row["result"] for row in rows) == sorted(2 * SIZES)
    assert trace.summary() == tool("stat", together)
    of_members = [miot.open(member).summary()["totals"]["events"] for member in members]
    assert trace.summary()["totals"]["events"] == sum(of_members)
    assert list(trace.stat("node")["node"]) == [row["node"] for row in tool("stat", together, "--by", "node")["rows"]]
    found = trace.sql("SELECT trace, sum(result) AS bytes FROM events WHERE op = 'write' AND result > 0 GROUP BY trace")
    assert {row["trace"] for row in found.to_arrow().to_pylist()} == {"p0", "p1"}
    assert trace.simulate("nvme").info == miot.open(members).simulate("nvme").info
    assert f"{sum(of_members):,} events" in repr(trace) and "2 parts" in repr(trace)
    with pytest.raises(miot.OptionError, match="each of them"):
        trace.follow()


def test_missing_trace_of_a_set_is_a_warning(members, tmp_path):
    with pytest.warns(miot.LossWarning, match="missing in the result"):
        trace = miot.open([members[0], tmp_path / "gone"])
    assert not trace.lossless
    with pytest.warns(miot.LossWarning, match="gone"):
        found = trace.stat()
    assert list(found) == list(miot.open(members[0]).stat())
    with pytest.warns(miot.LossWarning, match="gone"):
        assert set(trace.events(["node"]).to_arrow().to_pydict()["node"]) == {"n0"}


def test_traces_that_are_no_set_are_an_error(members, directory):
    with pytest.raises(miot.Error, match="both are partition 0"):
        miot.open([members[0], members[0]])
    with pytest.raises(miot.Error, match="no cluster"):
        miot.open([members[0], directory])
    for sources, text in [([], "0 traces"), (["s3://a/b", members[0]], "each of them"), ([members[0], "h:1"], "each of them")]:
        with pytest.raises(miot.OptionError, match=text):
            miot.open(sources)
