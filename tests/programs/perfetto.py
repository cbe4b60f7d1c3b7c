#!/usr/bin/python3
"""Checks that a file follows the JSON trace event format, and that its events are the rows that
`miot cat --format json` printed into ROWS: `perfetto.py TRACE.json ROWS`. Each appears once,
with times to the nanosecond and every argument equal. Prints counts."""

import collections
import decimal
import json
import sys

SAID = {"time", "duration", "node", "process", "pid", "tid", "comm", "layer", "op"}
decimal.getcontext().prec = 40


def nanoseconds(text):
    import datetime

    head, fraction = text[:-1].split(".")
    delta = datetime.datetime.fromisoformat(head + "+00:00") - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return (delta.days * 86400 + delta.seconds) * 10**9 + int(fraction)


def exact(time):
    scaled = time * 1000
    assert scaled == int(scaled), f"{time} has more than three decimals"
    assert abs(scaled) < 2**53, f"{time} is no exact double"
    return int(scaled)


trace = json.load(open(sys.argv[1]), parse_float=decimal.Decimal)
assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}, set(trace)
assert trace["displayTimeUnit"] in ("ms", "ns")
origin = int(trace["otherData"]["nanoseconds_since_1970_at_0"])

phases = collections.Counter()
names, threads, lines, open_pairs, found = {}, {}, collections.defaultdict(list), {}, []
for event in trace["traceEvents"]:
    phase = event["ph"]
    phases[phase] += 1
    assert isinstance(event["pid"], int) and 0 <= event["pid"] < 2**32
    if phase == "M":
        assert event["name"] in ("process_name", "process_labels", "thread_name"), event
        if event["name"] == "process_name":
            assert names.setdefault(event["pid"], event["args"]["name"]) == event["args"]["name"], "a pid of two processes"
        elif event["name"] == "thread_name":
            key = event["tid"]
            assert key not in threads, "a tid of two threads"
            threads[key] = (event["pid"], event["args"]["name"])
        else:
            assert isinstance(event["args"]["labels"], str)
        continue
    assert event["pid"] in names, "an event before the name of its process"
    assert threads[event["tid"]][0] == event["pid"], "an event of a thread of another process"
    assert isinstance(event["name"], str) and isinstance(event["cat"], str)
    time = exact(event["ts"])
    if phase == "X":
        took = exact(event["dur"])
        assert took >= 0
        lines[event["pid"], event["tid"]].append((time, -took))
    elif phase == "b":
        key = (event["cat"], event["id"])
        assert key not in open_pairs, "an id of two pairs that are open"
        open_pairs[key] = event
        continue
    elif phase == "e":
        event_b = open_pairs.pop((event["cat"], event["id"]))
        assert all(event_b[key] == event[key] for key in ("pid", "tid", "name"))
        took = time - exact(event_b["ts"])
        assert took >= 0
        time, event = time - took, event_b
    else:
        raise AssertionError(f"phase {phase}")
    found.append((origin + time + took, took, event))
assert not open_pairs, "pairs without an end"

# Complete events of a thread are nested or disjoint.
deepest = 0
for line in lines.values():
    stack = []
    for begin, took in sorted(line):
        end = begin - took
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1], "complete events of a thread overlap"
        stack.append(end)
        deepest = max(deepest, len(stack))


def arguments(values):
    return {key: int(value) if isinstance(value, str) and value.lstrip("-").isdigit() and key not in ("path", "path2", "message") else value for key, value in values.items()}


def key(time, took, layer, op, name, thread, values):
    return json.dumps([time, took, layer, op, name, thread, arguments(values)], sort_keys=True)


counted = collections.Counter()
for time, took, event in found:
    counted[key(time, took, event["cat"], event["name"], names[event["pid"]].split(" ", 1)[1], threads[event["tid"]][1], event["args"])] += 1
for line in open(sys.argv[2]):
    row = json.loads(line)
    rest = {name: value for name, value in row.items() if name not in SAID}
    name, thread = f"{row['pid']} @ {row['node']}", f"{row['comm']} {row['tid']}"
    counted[key(nanoseconds(row["time"]), row["duration"], row["layer"], row["op"], name, thread, rest)] -= 1
wrong = [(event, count) for event, count in counted.items() if count != 0]
for event, count in wrong[:10]:
    print("only in the export:" if count > 0 else "only in the trace:", event)
if wrong:
    sys.exit(1)
print(json.dumps({"events": len(found), "deepest": deepest, "phases": phases}))
