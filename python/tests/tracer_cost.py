"""Cost of a call on a file under MIOT and under DFTracer, beyond that of the same call under neither.

    PYTHONPATH=... python python/tests/tracer_cost.py --dftracer LIBRARY [--json FILE]

`LIBRARY` is libdftracer_preload.so of the package `dftracer`. A Python program reads a cached file
with `os.pread`. Its runs take turns: plain, under each tracer, and under both at once. The time of a
call is the median of the bursts of all rounds. The calls that each tracer recorded are counted in each
run. Exits with 1 if a tracer did not record each call, or recorded calls of a run without it.
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
from miot._programs import program

#: Between two bursts the tracers write: a full lane makes the program wait, which is another cost.
PROGRAM = """
import os, sys, time
file, bursts, calls = os.open("data", os.O_RDONLY), int(sys.argv[1]), int(sys.argv[2])
for _ in range(bursts):
    begin = time.perf_counter_ns()
    for _ in range(calls):
        os.pread(file, 512, 0)
    print((time.perf_counter_ns() - begin) / calls)
    time.sleep(0.01)
"""


def dftracer_settings(place):
    return {
        "DFTRACER_ENABLE": "1",
        "DFTRACER_INIT": "PRELOAD",
        "DFTRACER_DATA_DIR": "all",
        "DFTRACER_LOG_FILE": str(place / "log"),
        "DFTRACER_TRACE_COMPRESSION": "0",
        "DFTRACER_INC_METADATA": "1",
    }


def command_of(place, words, library):
    """Returns the command of a run, with DFTracer if its library is given."""
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", PROGRAM, *words]
    if library:
        settings = [f"{name}={value}" for name, value in dftracer_settings(place).items()]
        preload = f'exec env LD_PRELOAD="$LD_PRELOAD:{library}" "$@"'
        command = ["sh", "-c", preload, "sh", *settings, *command]
    return command


def recorded(place):
    """Returns the calls of `pread` that each tracer recorded; `None` if it was not there."""
    counts = {"miot": None, "dftracer": None}
    if (place / "trace").exists():
        rows = miot.open(place / "trace").events(op="pread", path="**/data", columns=["result"]).to_arrow()
        counts["miot"] = sum(result == 512 for result in rows["result"].to_pylist())
    logs = list(place.glob("log-*.pfw"))
    if logs:
        counts["dftracer"] = sum(log.read_text().count('"name":"pread64"') for log in logs)
    return counts


def check(run, counts, traced, preloaded, calls):
    expected = {"miot": calls if traced else None, "dftracer": calls if preloaded else None}
    if counts != expected:
        raise SystemExit(f"{run}: expected {expected} recorded calls, found {counts}")


def measure(library, rounds, bursts, calls):
    library = os.path.abspath(library)
    runs = {"plain": (False, None), "miot": (True, None), "dftracer": (False, library), "both": (True, library)}
    times = {name: [] for name in runs}
    counts = {}
    for _ in range(rounds):
        for name, (traced, preloaded) in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                place = pathlib.Path(folder)
                (place / "data").write_bytes(bytes(4096))
                command = command_of(place, [str(bursts), str(calls)], preloaded)
                if traced:
                    command = [program("miot"), "run", "-q", "-o", "trace", "--", *command]
                ended = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
                times[name] += [float(line) for line in ended.stdout.split()]
                counts[name] = recorded(place)
                check(name, counts[name], traced, preloaded, bursts * calls)
    plain = statistics.median(times["plain"])
    rows = []
    for name in runs:
        call = statistics.median(times[name])
        row = {"run": name, "call_ns": round(call), "beyond_ns": round(call - plain), "calls": bursts * calls}
        rows.append({**row, "recorded": counts[name]})
    beyond = {row["run"]: row["beyond_ns"] for row in rows}
    ratio = beyond["dftracer"] / beyond["miot"] if beyond["miot"] > 0 else None
    return {"rows": rows, "dftracer_by_miot": ratio}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dftracer", required=True, metavar="LIBRARY")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--bursts", type=int, default=50)
    options.add_argument("--calls", type=int, default=400, help="calls in a burst")
    options.add_argument("--json", metavar="FILE")
    given = options.parse_args()
    found = measure(given.dftracer, given.rounds, given.bursts, given.calls)
    for row in found["rows"]:
        counts = ", ".join(f"{name} recorded {count}" for name, count in row["recorded"].items() if count is not None)
        print(f"{row['run']:10} {row['call_ns']:6} ns  beyond plain {row['beyond_ns']:6} ns  {row['calls']} calls  {counts}")
    if found["dftracer_by_miot"]:
        print(f"DFTracer / MIOT: {found['dftracer_by_miot']:.1f}")
    if given.json:
        pathlib.Path(given.json).write_text(json.dumps(found, indent=2))
