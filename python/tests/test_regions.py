"""Regions: recorded by the preloaded tracer, and the analyses of them."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import miot
from conftest import python, run, tool


def traced(tmp_path, source, *arguments, environment=None):
    """Runs a program under `miot run` and returns its trace."""
    script, made = tmp_path / "program.py", tmp_path / "trace"
    script.write_text("import miot\n" + textwrap.dedent(source))
    folder = os.path.dirname(os.path.dirname(miot.__file__))
    path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    run("miot", "run", "-q", "-o", made, "--", python(), script, *arguments, env=env, cwd=tmp_path)
    return miot.open(made)


def regions(trace):
    """Returns the regions: name, attributes, result, in order of completion."""
    rows = trace.events(op="region", columns=["path", "path2", "arg", "result"]).to_arrow().to_pylist()
    numbers = ["" if row["arg"] is None else str(row["arg"]) for row in rows]
    return [(row["path"], (row["path2"] or "") + text, row["result"]) for row, text in zip(rows, numbers)]


def test_context_manager_decorator_and_iterators(tmp_path):
    trace = traced(
        tmp_path,
        """
        with miot.region("outer"):
            with miot.region("inner", epoch=3, name="a,b", step=17):
                pass

        @miot.region("function", kind="compute")
        def function(number):
            return number + 1

        assert function(1) == 2 and function.__name__ == "function"
        assert list(miot.region("fetch").iter("ab")) == ["a", "b"]
        for epoch in miot.region("epoch", loader=0).loop(range(5, 7), number="epoch"):
            assert miot.region("never entered")

        @miot.region("generator")
        def generator():
            yield 1
            return 2

        assert list(generator()) == [1]
        try:
            with miot.region("failed"):
                open("/no/such/file")
        except FileNotFoundError:
            pass
        try:
            with miot.region("canceled"):
                raise ValueError
        except ValueError:
            pass
        again = miot.region("again")
        with again, again:
            pass
        """,
    )
    assert regions(trace) == [
        ("inner", "epoch=3,name=a b,step=17", 0),
        ("outer", "", 0),
        ("function", "kind=compute", 0),
        ("fetch", "step=0", 0),
        ("fetch", "step=1", 0),
        ("epoch", "loader=0,epoch=0", 0),
        ("epoch", "loader=0,epoch=1", 0),
        ("generator", "", 0),
        ("failed", "", -2),
        ("canceled", "", -125),
        ("again", "", 0),
        ("again", "", 0),
    ]
    assert trace.losses.to_dict().get("count", []) == []


def test_threads_tasks_and_children(tmp_path):
    trace = traced(
        tmp_path,
        """
        import asyncio, multiprocessing, os, threading

        def work(name):
            with miot.region(name, step=1):
                os.stat("/")

        async def task(name, first, then):
            with miot.region(name):
                first.set()
                await then.wait()

        async def tasks():
            one, two, three = asyncio.Event(), asyncio.Event(), asyncio.Event()
            three.set()
            # The first task ends its region while the second one is open, and the second one later.
            async def other():
                await one.wait()
                with miot.region("second"):
                    two.set()
                    await asyncio.sleep(0.01)
            await asyncio.gather(task("first", one, two), other())

        @miot.region("coroutine")
        async def coroutine():
            await asyncio.sleep(0)
            return 5

        if __name__ == "__main__":
            thread = threading.Thread(target=work, args=["thread"])
            thread.start()
            thread.join()
            asyncio.run(tasks())
            assert asyncio.run(coroutine()) == 5
            for method in ["fork", "spawn", "forkserver"]:
                child = multiprocessing.get_context(method).Process(target=work, args=[method])
                child.start()
                child.join()
                assert child.exitcode == 0
        """,
    )
    rows = trace.events(op="region", columns=["path", "pid", "tid", "time", "duration"]).to_arrow().to_pylist()
    by_name = {row["path"]: row for row in rows}
    names = ["thread", "first", "second", "coroutine", "fork", "spawn", "forkserver"]
    assert sorted(by_name) == sorted(names) and len(rows) == len(names)
    main = by_name["first"]["pid"]
    assert by_name["thread"]["pid"] == main and by_name["thread"]["tid"] != main
    assert len({by_name[name]["pid"] for name in ["first", "fork", "spawn", "forkserver"]}) == 4
    first, second = by_name["first"], by_name["second"]
    assert first["tid"] == second["tid"] == main
    assert first["time"] < second["time"], "they overlap, and end in order"


#: A loop with a worker: what is hidden, and what is not.
LOOP = """
    import os, threading, time

    def worker():
        # Reads while the main thread computes.
        computing.wait()
        file = os.open("data", os.O_RDONLY)
        while not stop.is_set():
            os.pread(file, 1 << 20, 0)

    open("data", "wb").write(b"x" * (1 << 20))
    computing, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=worker)
    thread.start()
    for epoch in range(2):
        with miot.region("epoch", epoch=epoch):
            with miot.region("forward"):
                computing.set()
                time.sleep(0.2)
            if epoch == 1:
                stop.set()
                thread.join()
            with miot.region("checkpoint"):
                file = os.open("saved", os.O_CREAT | os.O_WRONLY)
                os.write(file, b"y" * 4096)
                os.fsync(file)
                os.close(file)
                time.sleep(0.1)
"""


def test_io_during_regions(tmp_path):
    trace = traced(tmp_path, LOOP)
    table = trace.stat("region")
    rows = {(row["region"], row["layer"]): row for row in table}
    forward, checkpoint, epoch = (rows[name, None] for name in ["forward", "checkpoint", "epoch"])
    assert (forward["count"], checkpoint["count"], epoch["count"]) == (2, 2, 2)
    assert forward["kind"] == "compute" and forward["bytes_read"] >= 1 << 20
    assert forward["hidden"] == 1.0, "the main thread makes no request while it computes"
    assert checkpoint["bytes_written"] == 2 * 4096
    assert 0 < epoch["hidden_time"] < epoch["io_time"] <= epoch["time"]
    assert rows["checkpoint", "posix"]["requests"] == checkpoint["requests"]
    assert table.info["tasks"] == 1 and table.info["regions"] == 6
    # The tool has the same figures.
    digits = lambda row: {name: f"{value:.12g}" if isinstance(value, float) else value for name, value in row.items()}
    assert list(map(digits, tool("stat", trace.dir, "--by", "region")["rows"])) == list(map(digits, table))
    single = trace.stat("region", region="epoch")
    assert sorted(row["attributes"] for row in single if row["layer"] is None) == ["epoch=0", "epoch=1"]
    assert sum(row["io_time"] for row in single if row["layer"] is None) == epoch["io_time"]
    with pytest.raises(miot.OptionError, match="no such region; there are checkpoint, epoch, forward"):
        trace.stat("region", region="step")
    with pytest.raises(miot.OptionError, match="do not apply"):
        trace.stat("region", top=3)
    found = {row["rule"]: row for row in trace.findings()}
    assert "checkpoint_blocks" in found and "loader_starved" not in found
    assert found["checkpoint_blocks"]["what"].startswith("2 checkpoints stop the loop for 0.")


def test_requests_of_regions_count_as_before(tmp_path):
    """Regions are no I/O, and do not change which requests are outermost."""
    source = """
        import os, sys
        mark = miot.region if sys.argv[1] == "marked" else lambda *_, **__: open(os.devnull)
        with mark("epoch"):
            for _ in range(3):
                os.stat("/usr")
    """
    totals = []
    for kind in ["marked", "plain"]:
        (tmp_path / kind).mkdir()
        trace = traced(tmp_path / kind, source, kind)
        rows = {row["op"]: row for row in trace.stat("operation")}
        assert rows["stat"]["count"] >= 3
        totals.append(trace.summary()["totals"]["time"])
        assert not any(row["path"] == "epoch" for row in trace.summary()["files"])
    operations = {(row["layer"], row["op"]) for row in trace.stat("operation")}
    assert ("app", "region") not in operations


def test_nothing_happens_without_a_tracer(tmp_path):
    script = """
        import miot
        assert not miot.recording()
        with miot.region("epoch", epoch=1) as region:
            region.cancel()
        assert list(miot.region("fetch").iter([1, 2])) == [1, 2]
        miot.instrument()
        try:
            miot.instrument("nothing")
        except miot.OptionError as error:
            assert "there are torch" in str(error)
        else:
            raise SystemExit("not refused")
        try:
            miot.region("x")(5)
        except TypeError as error:
            assert "region.iter()" in str(error)
        else:
            raise SystemExit("not refused")
    """
    folder = os.path.dirname(os.path.dirname(miot.__file__))
    environment = {**os.environ, "PYTHONPATH": folder}
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, env=environment)


def test_tools_show_regions(tmp_path):
    trace = traced(
        tmp_path,
        """
        import os
        with miot.region("epoch", epoch=1):
            with miot.region("fetch"):
                os.stat("/etc")
            os.stat("/usr")
        """,
    )
    text = run("miot", "cat", trace.dir, "--tree", "--op", "region")
    lines = [line.split(maxsplit=3)[3] for line in text.splitlines()]
    shape = [(line.split()[1], line.split()[-1]) for line in lines]
    assert shape == [("region", "epoch=1"), ("region", "fetch"), ("stat", "/etc"), ("stat", "/usr")], text
    run("miot", "export", trace.dir, "--format", "perfetto", "--output", tmp_path / "perfetto.json")
    exported = json.loads((tmp_path / "perfetto.json").read_text())
    slices = {event["name"]: event for event in exported["traceEvents"] if event.get("cat") == "app"}
    assert set(slices) == {"epoch", "fetch"} and all(event["ph"] == "X" for event in slices.values())
    assert slices["epoch"]["args"]["message"] == "epoch=1"
    assert slices["epoch"]["ts"] <= slices["fetch"]["ts"]
    page = run("miot", "report", trace.dir, "-o", "-")
    assert 'id="regions-table"' in page and "<bdi>fetch</bdi>" in page
    # A region is not a request.
    assert "Most time went into " in page and "Most time went into app " not in page
    table = run("miot", "stat", trace.dir, "--by", "region").splitlines()
    assert table[0].split()[:4] == ["region", "layer", "count", "time"]
    assert [line.split()[:3] for line in table[1:4:2]] == [["epoch", "all", "1"], ["fetch", "all", "1"]]
    with pytest.raises(AssertionError, match="expected --by region"):
        run("miot", "stat", trace.dir, "--by", "job", "--region", "epoch")
