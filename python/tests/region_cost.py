"""Cost of a region in Python, beyond an empty context manager. Run it plain, and under `miot run`:

    python python/tests/region_cost.py
    miot run -o /tmp/trace -- python python/tests/region_cost.py

Loops of both kinds alternate, and the median of their differences counts.
"""

import statistics
import time

import miot

LOOPS, REGIONS = 200, 500
#: Seconds between two loops, in which the log-client reads the events: with a full lane `miot run` makes
#: the program wait, which is not the cost of a region.
PAUSE = 0.02 if miot.recording() else 0


class Empty:
    """Takes the same arguments and does nothing."""

    def __init__(self, name, /, **attributes):
        pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        pass


def created(make):
    begin = time.perf_counter_ns()
    for step in range(REGIONS):
        with make("step", step=step):
            pass
    return (time.perf_counter_ns() - begin) / REGIONS


def entered(manager):
    begin = time.perf_counter_ns()
    for _ in range(REGIONS):
        with manager:
            pass
    return (time.perf_counter_ns() - begin) / REGIONS


def compare(name, loop, empty, region):
    pairs = []
    for _ in range(LOOPS):
        pairs.append((loop(empty), loop(region)))
        time.sleep(PAUSE)
    nothing, something = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
    beyond = statistics.median(region - empty for empty, region in pairs)
    print(f"{name}: empty {nothing:.0f} ns, region {something:.0f} ns, difference {beyond:.0f} ns")


print("recording:", miot.recording())
compare("with miot.region('step', step=n)", created, Empty, miot.region)
compare("with an existing region", entered, Empty("step", step=1), miot.region("step", step=1))
