"""Measures the installed package on a long trace: ``python speed.py DIR [repetitions] [--json FILE]``.

Compares ``events().to_arrow()`` with pyarrow's reading of the same columns of the same Parquet files, and
``stat`` with the tool. Each is measured alternately, in processes of their own; the best times count,
because other programs disturb only upwards. Times of processors are those of all threads, which other
programs disturb less. Exits with 1 below ``--least`` (0.9) of the speed of the other.
"""

import argparse
import json
import subprocess
import sys

BEGIN = """
import glob, json, resource, sys, time
directory = sys.argv[1]
"""
END = """
seconds = time.perf_counter() - began
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu = sum(one.ru_utime + one.ru_stime for one in usage) - begun
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "rows": rows, "mib": usage[0].ru_maxrss >> 10}))
"""
ALL = "None"
FEW = "['time', 'duration', 'op', 'file', 'offset', 'result']"

OURS = """
import miot, pyarrow
columns = {columns} or [name for name in miot.open(directory).events().schema.names if name not in ("path", "path2", "comm")]
began, begun = time.perf_counter(), time.process_time()
rows = miot.open(directory).events(columns).to_arrow().num_rows
"""
THEIRS = """
import pyarrow.parquet, pyarrow.dataset
files = sorted(glob.glob(f"{{directory}}/events/part-*.parquet"))
began, begun = time.perf_counter(), time.process_time()
rows = pyarrow.dataset.dataset(files).to_table(columns={columns}).num_rows
"""
STREAMED = """
import miot
began, begun = time.perf_counter(), time.process_time()
rows = sum(len(table) for table in miot.open(directory).events())
"""
STAT = """
import miot
began, begun = time.perf_counter(), time.process_time()
rows = len(miot.open(directory).stat({by!r}))
"""
TOOL = """
import subprocess
from miot._programs import program
command = [program("miot"), "stat", directory, "--by", {by!r}, "--format", "json"]
began, begun = time.perf_counter(), time.process_time()
rows = len(json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["rows"])
"""


def measured(code, directory):
    ended = subprocess.run([sys.executable, "-c", BEGIN + code + END, directory], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def compare(name, other, ours, theirs, directory, repetitions):
    found = [(measured(ours, directory), measured(theirs, directory)) for _ in range(repetitions)]
    best = [{time: min(run[side][time] for run in found) for time in ("seconds", "cpu_seconds")} for side in (0, 1)]
    assert len({run[side]["rows"] for run in found for side in (0, 1)}) == 1, found
    ratio = best[1]["seconds"] / best[0]["seconds"]
    rows = found[0][0]["rows"]
    texts = [f"{one['seconds']:.2f} s ({one['cpu_seconds']:.2f} s of processors)" for one in best]
    print(f"{name}: {rows} rows, miot {texts[0]}, {other} {texts[1]}: {ratio:.2f} times its speed")
    return {"name": name, "rows": rows, "miot": best[0], "other": other, other: best[1], "ratio": ratio}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir")
    parser.add_argument("repetitions", type=int, nargs="?", default=3)
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--least", type=float, default=0.9, metavar="RATIO")
    options = parser.parse_args()
    comparisons = [
        ("all columns", "pyarrow", OURS.format(columns=ALL), THEIRS.format(columns=ALL)),
        ("six columns", "pyarrow", OURS.format(columns=FEW), THEIRS.format(columns=FEW)),
        ("stat('operation')", "tool", STAT.format(by="operation"), TOOL.format(by="operation")),
        ("stat('process')", "tool", STAT.format(by="process"), TOOL.format(by="process")),
    ]
    found = [compare(*words, options.dir, options.repetitions) for words in comparisons]
    streamed = measured(STREAMED, options.dir)
    print(f"streamed: {streamed['rows']} rows in {streamed['seconds']:.2f} s, at most {streamed['mib']} MiB of memory")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"comparisons": found, "streamed": streamed}, file, indent=1)
    sys.exit(0 if min(row["ratio"] for row in found) >= options.least else 1)


if __name__ == "__main__":
    main()
