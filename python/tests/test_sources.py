"""Traces of several log-servers as one, and traces in an object store."""

import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import miot
from conftest import python, run, tool
from miot._programs import hook, program
from test_follow import until

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


@pytest.fixture
def store(monkeypatch):
    """Address of an S3 server, which the environment names."""
    boto3 = pytest.importorskip("boto3", reason="NOT TESTED: no S3 server (moto) is installed")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    server = os.path.join(os.path.dirname(sys.executable), "moto_server")
    process = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)

    def answers():
        try:
            return urllib.request.urlopen(endpoint).status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    until(answers)
    settings = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    for name, value in {**settings, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(name, value)
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    s3.create_bucket(Bucket="traces")
    yield s3
    process.terminate()
    process.wait(30)


def test_trace_in_an_object_store(store, directory, tmp_path, tmp_path_factory, monkeypatch):
    incomplete = tmp_path_factory.mktemp("incomplete") / "trace"
    for file in directory.rglob("*"):
        if file.is_file():
            store.upload_file(str(file), "traces", f"runs/{file.relative_to(directory)}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    local, trace = miot.open(directory), miot.open("s3://traces/runs")
    assert trace.events().to_arrow().equals(local.events().to_arrow())
    assert list(trace.stat("file")) == list(local.stat("file"))
    assert "s3://traces/runs" in repr(trace) and trace.lossless
    copy = trace.dir
    assert copy.startswith(str(tmp_path))
    del trace
    assert not os.path.exists(os.path.dirname(copy)), "the copy is removed with the object"
    kept = miot.open("s3://traces/runs", copy_to=tmp_path / "kept")
    del kept
    assert miot.open(tmp_path / "kept").lossless
    # The ledger proves that the copy is complete, and notices what is missing.
    assert "good: ordered, complete" in run("miot", "fsck", tmp_path / "kept")
    shutil.copytree(tmp_path / "kept", incomplete)
    (removed,) = (incomplete / "events").iterdir()
    removed.unlink()
    checked = subprocess.run([program("miot"), "fsck", incomplete], capture_output=True, text=True)
    assert checked.returncode != 0 and "which the ledger has" in checked.stdout
    with pytest.raises(miot.Error, match="kept exists: name a new directory"):
        miot.open("s3://traces/runs", copy_to=tmp_path / "kept")
    with pytest.raises(miot.Error, match="s3://traces/elsewhere is not a MIOT trace"):
        miot.open("s3://traces/elsewhere")
    with pytest.raises(miot.OptionError, match="object store"):
        miot.open(directory, copy_to=tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["kept"]
