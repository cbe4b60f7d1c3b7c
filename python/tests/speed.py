"""Measures the installed package on a long trace: ``python speed.py DIR [repetitions]``.

Compares ``events().to_arrow()`` with pyarrow's reading of the same columns of the same Parquet files, and
``stat`` with the tool. Each is measured alternately, in processes of their own; the best times count,
because other programs disturb only upwards. Exits with 1 below 0.9 of the speed of the other.
"""

import subprocess
import sys

BEGIN = """
import glob, json, resource, sys, time
directory = sys.argv[1]
began = time.perf_counter()
"""
END = """
print(json.dumps({"seconds": time.perf_counter() - began, "rows": rows, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))
"""
ALL = "None"
FEW = "['time', 'duration', 'op', 'file', 'offset', 'result']"

OURS = """
import miot
columns = {columns} or [name for name in miot.open(directory).events().schema.names if name not in ("path", "path2", "comm")]
began = time.perf_counter()
rows = miot.open(directory).events(columns).to_arrow().num_rows
"""
THEIRS = """
import pyarrow.parquet, pyarrow.dataset
files = sorted(glob.glob(f"{{directory}}/events/part-*.parquet"))
began = time.perf_counter()
rows = pyarrow.dataset.dataset(files).to_table(columns={columns}).num_rows
"""
STREAMED = """
import miot
began = time.perf_counter()
rows = sum(len(table) for table in miot.open(directory).events())
"""
STAT = """
import miot
began = time.perf_counter()
rows = len(miot.open(directory).stat({by!r}))
"""
TOOL = """
import subprocess
from miot._programs import program
command = [program("miot"), "stat", directory, "--by", {by!r}, "--format", "json"]
began = time.perf_counter()
rows = len(json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["rows"])
"""


def measured(code, directory):
    import json

    ended = subprocess.run([sys.executable, "-c", BEGIN + code + END, directory], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def compare(name, ours, theirs, directory, repetitions):
    found = [(measured(ours, directory), measured(theirs, directory)) for _ in range(repetitions)]
    best = [min(run[side]["seconds"] for run in found) for side in (0, 1)]
    assert len({run[side]["rows"] for run in found for side in (0, 1)}) == 1, found
    ratio = best[1] / best[0]
    print(f"{name}: {found[0][0]['rows']} rows, miot {best[0]:.2f} s, the other {best[1]:.2f} s: {ratio:.2f} times its speed")
    return ratio


def main():
    directory, repetitions = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    ratios = [
        compare("all columns, pyarrow", OURS.format(columns=ALL), THEIRS.format(columns=ALL), directory, repetitions),
        compare("six columns, pyarrow", OURS.format(columns=FEW), THEIRS.format(columns=FEW), directory, repetitions),
        compare("stat('operation'), miot", STAT.format(by="operation"), TOOL.format(by="operation"), directory, repetitions),
        compare("stat('process'), miot", STAT.format(by="process"), TOOL.format(by="process"), directory, repetitions),
    ]
    streamed = measured(STREAMED, directory)
    print(f"streamed: {streamed['rows']} rows in {streamed['seconds']:.2f} s, at most {streamed['mib']} MiB of memory")
    sys.exit(0 if min(ratios) >= 0.9 else 1)


if __name__ == "__main__":
    main()
