"""Pictures of traces, with matplotlib."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from . import _miot
from ._errors import Error
from ._table import _need

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ._trace import Trace

_UNITS = {
    "read_bytes": "bytes read",
    "write_bytes": "bytes written",
    "bytes": "bytes read and written",
    "requests": "requests",
    "time": "seconds in requests",
}


def _axes(ax: Axes | None, height: float = 4.0) -> Axes:
    if ax is not None:
        return ax
    pyplot = _need("matplotlib.pyplot", "plot")
    return pyplot.subplots(figsize=(9, height), layout="constrained")[1]


def _day(nanoseconds: int) -> str:
    begin = datetime.datetime.fromtimestamp(nanoseconds / 1e9, datetime.timezone.utc)
    return f"seconds after {begin:%Y-%m-%d %H:%M:%S} UTC"


class Plots:
    """Pictures of a trace. Each method returns the axes of matplotlib; ``ax`` draws into others."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def heatmap(
        self, by: str = "rank", what: str = "bytes", *, ax: Axes | None = None, cmap: str = "viridis", **options: Any
    ) -> Axes:
        """Draws :meth:`Trace.heatmap`: rows over time, colored by bytes, requests or time."""
        found = self._trace.heatmap(by, what, **options)
        if not found.rows:
            raise Error(f"{self._trace.dir}: no requests to draw")
        ax = _axes(ax, 2.0 + min(0.2 * len(found.rows), 10.0))
        values = found.values / 1e9 if what == "time" else found.values
        seconds = (found.end - found.begin) / 1e9
        image = ax.imshow(
            values,
            aspect="auto",
            origin="lower",
            interpolation="nearest",
            cmap=cmap,
            extent=(0, seconds, -0.5, len(found.rows) - 0.5),
        )
        step = max(1, len(found.rows) // 40)
        names = [name if len(name) <= 40 else "…" + name[-39:] for name in found.rows]
        ax.set_yticks(range(0, len(names), step), names[::step])
        ax.set(xlabel=_day(found.begin), ylabel=by)
        ax.figure.colorbar(image, ax=ax, label=f"{_UNITS[what]} per {seconds / found.bins:.3g} s")
        return ax

    def throughput(self, interval: str | int | None = None, *, ax: Axes | None = None, **options: Any) -> Axes:
        """Draws the bytes per second read and written, by interval: by default a 200th of the time."""
        trace = self._trace
        if interval is None:
            info = trace.bursts("1h", **options).info
            interval = max(1, (info["end"] - info["begin"]) // 200)
        found = trace.bursts(interval, **options)
        length, begin = found.info["interval"], found.info["begin"]
        ax = _axes(ax)
        starts = [(at - begin) / 1e9 for at in found["begin"]]
        for column, sign, label in (("read", 1, "read"), ("written", -1, "written")):
            rates = [sign * count / (length / 1e9) for count in found[column]]
            ax.bar(starts, rates, width=length / 1e9, align="edge", label=label)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set(xlabel=_day(begin), ylabel="bytes/s (written: below 0)")
        ax.legend()
        return ax

    def file(self, path: str, *, ax: Axes | None = None, most: int = 200_000, **options: Any) -> Axes:
        """Draws reads and writes of the files that match ``path`` over time and offset in bytes: the
        first ``most`` of them."""
        events = self._trace.events(
            ["time", "offset", "result", "op"], path=path, **options
        )
        classes = _miot.operation_classes()
        found: dict[str, list[tuple[float, float]]] = {"read": [], "write": []}
        begin, left = None, most
        for table in events:
            columns = (table[name] for name in ("time", "offset", "result", "op"))
            for time, offset, result, op in zip(*columns):
                points = found.get(classes.get(op, ""))
                if points is None or offset is None or result < 0:
                    continue
                begin = time if begin is None else begin
                points.append(((time - begin) / 1e9, offset))
                left -= 1
                if left == 0:
                    break
            if left == 0:
                break
        if begin is None:
            raise Error(f"{self._trace.dir}: no reads and writes of {path} with an offset")
        ax = _axes(ax)
        for kind, points in found.items():
            if points:
                ax.plot(*zip(*points), ".", markersize=2, label=kind)
        ax.set(xlabel=_day(begin), ylabel="offset, bytes", title=path)
        ax.legend()
        return ax

    def durations(self, *, ax: Axes | None = None, top: int = 12, **options: Any) -> Axes:
        """Draws the median, the 99th percentile and the maximum of the durations of operations."""
        found = list(self._trace.stat("operation", sort="time", top=top, **options))
        if not found:
            raise Error(f"{self._trace.dir}: no requests to draw")
        ax = _axes(ax, 1.5 + 0.3 * len(found))
        names = [f"{row['op']} ({row['layer']})" for row in found]
        for figure, mark in (("p50", "o"), ("p99", "|"), ("max", ">")):
            ax.plot([max(row[figure], 1) / 1e9 for row in found], names, mark, label=figure)
        ax.set(xscale="log", xlabel="seconds")
        ax.invert_yaxis()
        ax.legend()
        return ax
