#!/usr/bin/python3
"""Checks that the events in CTF, as read by babeltrace2's own library, are the rows that `miot
cat --format json` printed into ROWS: `ctf.py CTF ROWS`. Each appears once, with every field
equal, in order of time. Prints the number of events and of lost ones."""

import collections
import json
import sys

import bt2


def plain(field):
    if isinstance(field, bt2._StringFieldConst):
        return str(field)
    return int(field)


def nanoseconds(text):
    """Converts 2026-11-21T04:12:33.123456789Z, or a number for a time outside the calendar, to
    nanoseconds since 1970."""
    if not text.endswith("Z"):
        return int(text)
    import datetime

    head, fraction = text[:-1].split(".")
    sign = -1 if head.startswith("-") else 1
    moment = datetime.datetime.fromisoformat(head.lstrip("-") + "+00:00")
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    delta = moment - epoch
    return sign * ((delta.days * 86400 + delta.seconds) * 10**9 + int(fraction))


def row(event, time):
    layer, op = event.name.split(":", 1)
    found = {"time": time, "layer": layer, "op": op}
    for part in (event.common_context_field, event.payload_field):
        for name, field in (part or {}).items():
            found[name] = plain(field)
    return found


found, lost, last = [], 0, 0
for message in bt2.TraceCollectionMessageIterator(sys.argv[1]):
    if isinstance(message, bt2._EventMessageConst):
        time = message.default_clock_snapshot.ns_from_origin
        assert time >= last, f"{time} after {last}"
        last = time
        found.append(row(message.event, time))
    elif isinstance(message, bt2._DiscardedEventsMessageConst):
        lost += message.count

expected = []
for line in open(sys.argv[2]):
    event = json.loads(line)
    event["time"] = nanoseconds(event["time"])
    expected.append({k: v.replace("\0", "\\x00") if isinstance(v, str) else v for k, v in event.items()})

key = lambda event: json.dumps(event, sort_keys=True)
counted = collections.Counter(map(key, found))
counted.subtract(map(key, expected))
wrong = [(event, count) for event, count in counted.items() if count != 0]
for event, count in wrong[:10]:
    print("only in CTF:" if count > 0 else "only in the trace:", event)
if wrong:
    sys.exit(1)
print(json.dumps({"events": len(found), "lost": lost}))
