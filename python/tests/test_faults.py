"""Missing, damaged and forbidden traces; lost events; Ctrl-C; memory."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import miot

from conftest import python, run, tool


def test_missing_directory():
    with pytest.raises(miot.Error, match="/no/such/trace is not a MIOT trace"):
        miot.open("/no/such/trace")


def test_directory_without_a_trace(tmp_path):
    with pytest.raises(miot.Error, match="is not a MIOT trace"):
        miot.open(tmp_path)
    (tmp_path / "miot-trace.json").write_text("{")
    with pytest.raises(miot.Error, match="MIOT"):
        miot.open(tmp_path)


def test_set_of_one_trace(directory):
    assert miot.open([directory]).dir == os.fspath(directory)
    assert miot.open(f"file://{directory}").lossless


def test_certificates_are_for_servers(directory):
    with pytest.raises(miot.OptionError, match="log-server"):
        miot.open(directory, tls_key="key.pem")


def test_damage_is_a_warning_and_figures_are_those_of_the_tool(damaged):
    trace = miot.open(damaged)
    with pytest.raises(miot.Error, match="damaged|not what was written"):
        # The trace has one row group: nothing is left of the events.
        trace.events(["op"]).to_arrow()


def test_missing_side_table_is_a_warning(directory, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    next((copy / "files").glob("*.parquet")).unlink()
    trace = miot.open(copy)
    assert not trace.lossless
    with pytest.warns(miot.LossWarning, match="not read: files/"):
        found = trace.stat("process")
    ended = subprocess.run(
        [miot._programs.program("miot"), "stat", copy, "--by", "process", "--format", "json"], capture_output=True
    )
    assert ended.returncode == 4
    assert len(found) > 0
    with pytest.warns(miot.LossWarning, match="files/"):
        trace.files
    with pytest.warns(miot.LossWarning, match="files/"):
        assert trace.events(["op", "path"]).to_arrow().num_rows > 0


def test_losses_are_warnings(tmp_path):
    """A lane too small for the burst, and threads that do not wait: events are lost, or none is."""
    script = tmp_path / "burst.py"
    script.write_text("import os\nfor _ in range(3000): os.stat('/')\n")
    sampled = tmp_path / "sampled"
    run("miot", "run", "-q", "--sample", "1/8", "-o", sampled, "--", python(), script)
    totals = tool("stat", sampled)["totals"]
    assert totals["filtered"] > 0
    trace = miot.open(sampled)
    with pytest.warns(miot.LossWarning, match=f"{totals['filtered']} requests were left out"):
        trace.stat()
    with pytest.warns(miot.LossWarning, match="left out"):
        trace.events(["op"]).to_arrow()
    with pytest.warns(miot.LossWarning, match="left out"):
        trace.summary()
    with pytest.warns(miot.LossWarning, match="left out"):
        trace.heatmap()


def test_no_permission(directory):
    """In a process of a user who may not read the trace."""
    code = "import miot, sys\ntry: miot.open(sys.argv[1])\nexcept miot.Error as error: print(error)"
    denied = directory.parent / "denied"
    denied.mkdir(exist_ok=True)
    (denied / "miot-trace.json").write_text("{}")
    os.chmod(denied, 0)
    try:
        options = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        ended = subprocess.run(
            [sys.executable, "-c", code, denied], capture_output=True, text=True, cwd="/", env=environment, **options
        )
    except PermissionError:
        pytest.skip("cannot become another user")
    finally:
        os.chmod(denied, 0o700)
    if "Permission denied" in ended.stderr or "No module named" in ended.stderr:
        pytest.skip("another user may not read this Python")
    assert "ermission denied" in ended.stdout, ended


INTERRUPTED = textwrap.dedent(
    """
    import miot, sys, time
    trace = miot.open(sys.argv[1])
    print("ready", flush=True)
    try:
        while True:
            {call}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    """
)


@pytest.mark.parametrize(
    "call",
    [
        "trace.events().to_arrow()",
        "trace.stat('file')",
        "trace.heatmap(bins=1000)",
        "list(trace.follow())",
        "trace.sql('SELECT sum(a.result * b.result * c.result) AS n FROM events a, events b, events c').to_arrow()",
    ],
)
def test_ctrl_c_ends_a_call(directory, call):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(call=call), directory],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.5)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert process.returncode == 0
    assert time.monotonic() - began < 10


def test_other_threads_run_while_a_trace_is_read(directory):
    """The interpreter is released: another thread counts on while this one reads."""
    trace = miot.open(directory)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    began = time.monotonic()
    while time.monotonic() - began < 1:
        trace.heatmap(bins=2000, top=500)
    stop.set()
    thread.join()
    assert counted[0] > 20


def test_threads_read_at_once(directory):
    trace = miot.open(directory)
    found = []
    threads = [threading.Thread(target=lambda: found.append(trace.events().to_arrow().num_rows)) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 4 and len(set(found)) == 1


def test_stream_is_consumed_once(trace):
    events = trace.events(["op"])
    stream = events._stream()
    stream.__arrow_c_stream__()
    with pytest.raises(miot.Error, match="consumed"):
        stream.__arrow_c_stream__()
    # The object itself reads again each time.
    assert events.to_arrow().num_rows == events.to_arrow().num_rows


def test_programs_are_found():
    assert "miot" in run("miot", "--version")
    for name in ("log-client", "log-server", "miot-query"):
        assert run(name, "--version")
    ended = subprocess.run([sys.executable, "-m", "miot", "--version"], capture_output=True, text=True)
    assert ended.stdout == run("miot", "--version")
    with pytest.raises(miot.Error, match="no-such-program"):
        miot._programs.program("no-such-program")
