"""Cost of a region in Python, beyond an empty context manager that is written in Python.

    PYTHONPATH=... python python/tests/region_cost.py [--json FILE]

Programs take turns: without a tracer, with one that is dormant because its node has no log-client, and
under `miot run`. Each alternates loops of both kinds; the median of the differences of all rounds
counts. The regions in the trace are counted. Exits with 1 if a tracer did not do what its row says.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import miot
from miot._programs import hook, program

PROGRAM = """
import json, os, sys, time
import miot

class Empty:
    def __init__(self, name, /, **attributes):
        pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        pass

def created(make):
    begin = time.perf_counter_ns()
    for step in range(regions):
        with make("created", step=step):
            pass
    return (time.perf_counter_ns() - begin) / regions

def entered(manager):
    begin = time.perf_counter_ns()
    for _ in range(regions):
        with manager:
            pass
    return (time.perf_counter_ns() - begin) / regions

loops, regions = int(sys.argv[1]), int(sys.argv[2])
# Between two loops the log-client reads the events: with a full lane `miot run` makes the program wait,
# which is not the cost of a region.
pause = 0.02 if miot.recording() else 0
nothing, something = Empty("entered", step=1), miot.region("entered", step=1)
pairs = {"created": [], "entered": []}
for _ in range(loops):
    pairs["created"].append((created(Empty), created(miot.region)))
    pairs["entered"].append((entered(nothing), entered(something)))
    time.sleep(pause)
print(json.dumps({"preloaded": miot._miot.preloaded(), "recording": miot.recording(), "pairs": pairs}))
"""
#: Whether a tracer is preloaded, and whether it records.
WAYS = {"none": (False, False), "dormant": (True, False), "recorded": (True, True)}


def run(way, place, loops, regions):
    """Returns what the program prints, and the numbers of regions in the trace."""
    command = [os.path.realpath(sys.executable), "-c", PROGRAM, str(loops), str(regions)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment.pop("LD_PRELOAD", None)
    if way == "dormant":
        environment |= {"LD_PRELOAD": hook(), "MIOT_DIR": str(place / "no-node")}
    if way == "recorded":
        command = [program("miot"), "run", "-q", "-o", str(place / "trace"), "--", *command]
    ended = subprocess.run(command, cwd=place, env=environment, check=True, capture_output=True, text=True)
    counts = {"created": 0, "entered": 0}
    if way == "recorded":
        trace = miot.open(place / "trace")
        for name in trace.events(op="region", columns=["path"]).to_arrow()["path"].to_pylist():
            counts[name] += 1
    return json.loads(ended.stdout), counts


def check(way, found, counts, calls):
    state = (found["preloaded"], found["recording"])
    if state != WAYS[way]:
        raise SystemExit(f"{way}: expected (preloaded, recording) {WAYS[way]}, found {state}")
    expected = calls if way == "recorded" else 0
    if set(counts.values()) != {expected}:
        raise SystemExit(f"{way}: expected {expected} regions of each kind in the trace, found {counts}")


def measure(rounds, loops, regions):
    pairs = {(way, kind): [] for way in WAYS for kind in ("created", "entered")}
    recorded = {}
    for _ in range(rounds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                found, counts = run(way, pathlib.Path(folder), loops, regions)
            check(way, found, counts, loops * regions)
            for kind, count in counts.items():
                pairs[way, kind] += found["pairs"][kind]
                recorded[way, kind] = recorded.get((way, kind), 0) + count
    rows = []
    for (way, kind), of in pairs.items():
        empty, region = (statistics.median(pair[at] for pair in of) for at in (0, 1))
        beyond = statistics.median(region - empty for empty, region in of)
        row = {"way": way, "kind": kind, "empty_ns": empty, "region_ns": region, "beyond_ns": beyond}
        rows.append({**row, "regions": rounds * loops * regions, "recorded": recorded[way, kind]})
    return {"python": sys.version.split()[0], "rows": rows}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--loops", type=int, default=200)
    options.add_argument("--regions", type=int, default=500, help="regions in a loop")
    options.add_argument("--json", metavar="FILE")
    given = options.parse_args()
    measured = measure(given.rounds, given.loops, given.regions)
    for row in measured["rows"]:
        times = "  ".join(f"{name} {row[f'{name}_ns']:6.1f} ns" for name in ("empty", "region", "beyond"))
        print(f"{row['way']:9} {row['kind']:8} {times}  {row['regions']} regions, {row['recorded']} recorded")
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(measured, indent=2))
