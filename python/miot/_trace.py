"""Traces: opening, reading, analyses."""

from __future__ import annotations

import asyncio
import datetime
import html
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from typing import TYPE_CHECKING, Any, AsyncIterator, Iterable, Iterator, Mapping, Sequence, Union

from . import _miot
from ._errors import Error, OptionError
from ._programs import program
from ._table import Events, Heatmap, Table, warn, warn_of_losses

if TYPE_CHECKING:
    from ._plot import Plots

#: A time: text such as ``2026-11-21T12:00:00Z``, an age such as ``10m``, a ``datetime``, or
#: nanoseconds since 1970.
Time = Union[str, int, datetime.datetime]
#: One name, or several of which any may match.
Names = Union[str, Iterable[str], None]

#: Events up to which ``repr`` computes totals and findings: a few seconds of reading.
_REPR_EVENTS = 5_000_000
_NANOSECONDS = 1_000_000_000
#: Addresses of object stores.
_STORES = ("s3://", "gs://", "az://", "http://", "https://")
#: Exit code of the tool if parts of the trace are missing or damaged.
_EXIT_INCOMPLETE = 4


def open(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    copy_to: str | os.PathLike[str] | None = None,
    tls_certificate: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_authority: str | os.PathLike[str] | None = None,
) -> Any:
    """Opens a trace, several as one, or a log-server to follow.

    ``source`` is the path of a trace directory, or a list of paths: traces of the log-servers of one
    cluster, which are read as one, in order of time. It may be the address of a trace in an object store:
    ``s3://bucket/prefix``, ``gs://…``, ``az://…`` (with the environment variables of AWS, Google, Azure), or
    ``https://…`` of a server that can list folders. Its sealed parts are copied into the new directory ``copy_to``, by default into a
    temporary one, which is removed with the object. All of these return a :class:`Trace`.

    ``host:port`` of a log-server returns a :class:`Server`. The PEM files of ``tls_…`` are all given or
    none; their defaults are those of the tool (``MIOT_TLS_CERTIFICATE``, ``MIOT_TLS_KEY``,
    ``MIOT_TLS_AUTHORITY``).
    """
    several = not isinstance(source, (str, os.PathLike))
    names = [os.fspath(name) for name in (source if several else [source])]  # type: ignore[union-attr]
    if not names:
        raise OptionError("0 traces: expected at least one")
    names = [name[len("file://") :] if name.startswith("file://") else name for name in names]
    files = (tls_certificate, tls_key, tls_authority)
    text = names[0]
    if len(names) == 1 and _miot.address(text) is not None:
        variables = ("MIOT_TLS_CERTIFICATE", "MIOT_TLS_KEY", "MIOT_TLS_AUTHORITY")
        given = [file if file is not None else os.environ.get(name) for file, name in zip(files, variables)]
        return Server(text, *given)
    if any(file is not None for file in files):
        raise OptionError(f"{text} is a directory: certificates are for a log-server (host:port)")
    if text.startswith(_STORES):
        if len(names) > 1:
            raise OptionError(f"{len(names)} traces, one of them in an object store: open each of them")
        return _copied(text, copy_to)
    if copy_to is not None:
        raise OptionError(f"{text} is a directory: copy_to is for a trace in an object store")
    for name in names:
        if name.startswith(_STORES) or _miot.address(name) is not None:
            raise OptionError(f"{len(names)} traces, of which {name} is not a directory: open each of them")
    trace = Trace(names)
    if len(names) > 1:
        warn(trace._native.set()[1])
    return trace


def _copied(address: str, to: str | os.PathLike[str] | None) -> Trace:
    """Copies a trace from an object store and opens the copy."""
    folder = tempfile.mkdtemp(prefix="miot-") if to is None else None
    try:
        directory = os.path.join(folder, "trace") if folder else os.fspath(to or "")
        command = [program("miot-query"), address, "--copy", directory]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
        notes = [line.removeprefix("miot query: ") for line in ended.stderr.splitlines()]
        if ended.returncode not in (0, _EXIT_INCOMPLETE):
            raise Error("\n".join(notes) or f"miot-query ended with exit code {ended.returncode}")
        warn(notes)
        trace = Trace([directory], address)
    except BaseException:
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if folder:
        weakref.finalize(trace, shutil.rmtree, folder, ignore_errors=True)
    return trace


def _names(value: Names) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(name) for name in value]


def _numbers(value: int | Iterable[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)


def _moment(value: Time | None) -> int | None:
    """Returns nanoseconds since 1970."""
    if value is None:
        return None
    if isinstance(value, str):
        return _miot.moment(value)
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            value = value.astimezone()
        elapsed = value - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        seconds = elapsed.days * 86400 + elapsed.seconds
        nanoseconds = getattr(value, "nanosecond", 0)
        return seconds * _NANOSECONDS + elapsed.microseconds * 1000 + nanoseconds
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{value!r}: expected a time such as 2026-11-21T12:00:00Z, an age such as 10m, a datetime, or "
            "nanoseconds since 1970"
        ) from error


def _times(since: Time | None, until: Time | None) -> tuple[int | None, int | None]:
    return _moment(since), _moment(until)


def _interval(value: str | int) -> int:
    if isinstance(value, str):
        return _miot.interval(value)
    if value <= 0:
        raise OptionError(f"interval {value}: expected nanoseconds above 0, or text such as 1s")
    return value


class Trace:
    """A trace directory, as the log-server or ``miot run`` wrote it, or several as one.

    Each call reads the directory as it is at that time, also while it is written. A
    :class:`~miot.LossWarning` says where figures are lower bounds because events are missing.
    """

    def __init__(self, dirs: Sequence[str], source: str | None = None) -> None:
        #: Directories.
        self.dirs = list(dirs)
        #: The text that names the trace on the tool's command line.
        self.dir = ",".join(self.dirs)
        #: What was opened: the directory, or the address of which it is a copy.
        self.source = source or self.dir
        self._native = _miot.Directory(self.dirs)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing stays open between calls."""

    # --- events and tables -----------------------------------------------------------------------

    def events(
        self,
        columns: Sequence[str] | None = None,
        *,
        op: Names = None,
        layer: Names = None,
        path: Names = None,
        job: Names = None,
        node: Names = None,
        pid: int | Iterable[int] | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Events:
        """Selects events: completed requests, in the order of their completion.

        ``columns`` are those of docs/reference/trace.md, with ``path`` and ``path2`` (paths of the
        files) and ``comm`` (name of the thread); by default all. ``path`` is a glob: ``*`` does not
        match ``/``, ``**`` does. Of several names any may match; different arguments must all match.
        ``since`` and ``until`` are times of completion.

        Units: ``time`` is nanoseconds since 1970 (UTC), ``duration`` and ``cpu_time`` are
        nanoseconds, ``offset``, ``length`` and the ``result`` of reads and writes are bytes; a
        negative ``result`` is an error number.
        """
        if isinstance(columns, str):
            columns = [columns]
        arguments = (
            None if columns is None else [str(name) for name in columns],
            _names(op),
            _names(layer),
            _names(path),
            _numbers(pid),
            _names(node),
            _names(job),
            _times(since, until),
        )
        # Wrong arguments are reported now, not when the events are read.
        begun, missing = self._native.events(*arguments)
        first = [begun]

        def stream() -> Any:
            return first.pop() if first else self._native.events(*arguments)[0]

        return Events(stream, json.loads(missing))

    def _table(self, name: str) -> Table:
        notes, batch = self._native.table(name)
        warn(notes)
        return Table(batch)

    @property
    def processes(self) -> Table:
        """Processes that made traced requests: node, pid, rank, job, executable, arguments …"""
        return self._table("processes")

    @property
    def threads(self) -> Table:
        """Threads, by stream."""
        return self._table("threads")

    @property
    def files(self) -> Table:
        """Paths, by file and node."""
        return self._table("files")

    @property
    def losses(self) -> Table:
        """Places and times at which events were lost or filtered out, with their ``count``."""
        return self._table("losses")

    @property
    def clocks(self) -> Table:
        """Conversions of the clocks of the nodes, in nanoseconds."""
        return self._table("clocks")

    @property
    def devices(self) -> Table:
        """Kernel counters of block devices and mounts, by interval; times in nanoseconds."""
        return self._table("devices")

    def sql(self, query: str, *, memory_limit: str = "1GiB", verify: bool = True) -> Events:
        """Runs SQL on the tables ``events``, ``processes``, ``threads``, ``files``, ``losses``,
        ``clocks``, ``devices`` and the views ``io``, ``file_stats``, ``job_stats``, ``paths``.

        The engine is that of ``miot query``, in a process of its own. The result streams as Arrow.
        ``memory_limit`` is for sorting, grouping and joining; operations that need more use temporary
        files. Without ``verify`` the checksums of sealed events are not verified first. Of several
        traces the rows are not in order; the column ``trace`` has the name of the directory.
        """
        command = [program("miot-query"), "--format", "arrow", "--memory-limit", memory_limit]
        command += [] if verify else ["--no-verify"]

        def stream() -> Any:
            # Those of a set that can be read now.
            traces = [word for dir in self._native.set()[0] for word in ("--trace", os.fspath(dir))]
            return _miot.query([*command, *traces, "--", query])

        return Events(stream)

    # --- analyses --------------------------------------------------------------------------------

    def _facts(self, all: bool = False) -> dict[str, Any]:
        return json.loads(self._native.facts(all))

    def _answer(self, answer: tuple[str, Any], stacklevel: int = 4) -> Table:
        info = json.loads(answer[0])
        warn_of_losses(info.get("missing"), info.get("unread", []), stacklevel)
        return Table(answer[1], info)

    @property
    def lossless(self) -> bool:
        """True if no event was lost, and all traces, side tables and the beginnings of all parts are readable.
        ``miot fsck`` checks every byte."""
        facts = self._facts(all=True)
        return facts["missing"]["lost"] == 0 and not facts["unread"]

    def summary(
        self, *, files: int = 10, since: Time | None = None, until: Time | None = None
    ) -> dict[str, Any]:
        """Returns ``miot stat --format json``: ``totals``, ``operations``, ``processes``, the ``files``
        slowest files, ``losses``, ``unread``. Times are nanoseconds, sizes are bytes."""
        found = json.loads(self._native.summary(files, _times(since, until)))
        totals = found["totals"]
        missing = {"lost": totals["lost"], "filtered": totals["filtered"]}
        warn_of_losses(missing, found["unread"])
        return found

    def stat(
        self,
        by: str = "operation",
        *,
        layer: Names = None,
        job: Names = None,
        path: Names = None,
        sort: str | None = None,
        top: int | None = None,
        depth: int = 3,
        block_size: str | int | None = None,
        counters: bool = False,
        region: str | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Table:
        """Returns ``miot stat --by``: one row per value and layer, largest first by ``sort``.

        ``by`` is ``operation``, ``layer``, ``job``, ``step``, ``process``, ``program``, ``rank``,
        ``file``, ``node``, ``directory`` (of ``depth`` components), ``user``, ``region`` or ``checkpoint``. ``operation``:
        counts, bytes, and durations in nanoseconds. ``layer``: each layer compared with the layer above;
        with ``counters=True`` the counters of each layer. ``region``: I/O during the regions of each
        name, and how much of it is hidden behind computation, in nanoseconds and bytes per second; with
        ``region="epoch"`` a row for each value of the attributes of these regions. ``checkpoint``: each
        checkpoint (``file`` is None) and its files, with bytes, nanoseconds, the part of its time that
        stops main threads, and writers. All others: Darshan's counters, Miller's rates, shares and quantiles; their times are seconds, and ``info`` has ``begin``, nanoseconds since
        1970, from which they count. All figures: docs/guide/stat.md.
        """
        times = _times(since, until)
        layers, jobs, paths = _names(layer), _names(job), _names(path)
        if by == "operation":
            table = self._answer(self._native.operations(layers, jobs, paths, sort, times))
            return table if top is None else _first(table, top)
        if by in ("region", "checkpoint"):
            if layers or jobs or paths or sort is not None or top is not None or block_size is not None:
                raise OptionError(f"by {by}: layer, job, path, sort, top and block_size do not apply to {by}s")
            if by == "checkpoint":
                return self._answer(self._native.checkpoints(times))
            return self._answer(self._native.regions(region, times))
        if by == "layer" and not counters:
            return self._answer(self._native.layers(times))
        block = None if block_size is None else str(block_size)
        answer = self._native.counters(by, depth, layers, jobs, paths, sort, top, block, times)
        return self._answer(answer)

    def findings(
        self,
        *,
        system_files: bool = False,
        block_size: str | int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Table:
        """Returns ``miot stat --show findings``: inefficient I/O by documented rules, with evidence
        and advice. ``block_size`` is the alignment of all files in bytes, or text such as ``1MiB``."""
        block = None if block_size is None else str(block_size)
        return self._answer(self._native.findings(system_files, block, _times(since, until)))

    def bursts(
        self, interval: str | int = "1min", *, since: Time | None = None, until: Time | None = None
    ) -> Table:
        """Returns ``miot stat --show bursts``: bytes read and written by interval.

        ``interval`` is text such as ``1s``, or nanoseconds. ``begin`` of a row is nanoseconds since
        1970. ``info`` has the distribution of the rates in bytes per second."""
        return self._answer(self._native.bursts(_interval(interval), _times(since, until)))

    def idle(
        self, interval: str | int = "1min", *, since: Time | None = None, until: Time | None = None
    ) -> Table:
        """Returns ``miot stat --show idle``: idle periods by three definitions, in nanoseconds."""
        return self._answer(self._native.idle(_interval(interval), _times(since, until)))

    def cycles(self, *, since: Time | None = None, until: Time | None = None) -> Table:
        """Returns ``miot stat --show cycles``: periods of the data rates, in nanoseconds. The first
        row is that of all processes together (``process`` is null)."""
        return self._answer(self._native.cycles(_times(since, until)))

    def patterns(
        self,
        *,
        system_files: bool = False,
        top: int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Table:
        """Returns ``miot stat --show patterns``: file sharing and order of accesses, one row per file.
        ``info["programs"]`` has the pattern of each program. Sizes are bytes."""
        most = sys.maxsize if top is None else top
        return self._answer(self._native.patterns(system_files, most, _times(since, until)))

    def phases(
        self,
        *,
        layer: str | None = None,
        path: str | None = None,
        gap: str | int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Table:
        """Returns ``miot phases``: one row per family of phases. ``gap``, text such as ``100ms`` or
        nanoseconds, is the time without requests that ends a phase. ``info`` has the rest of the
        model. ``weight`` is bytes, ``measured`` is in seconds and bytes per second."""
        return self._model(layer, path, gap, since, until)[0]

    def _model(self, layer: Any, path: Any, gap: Any, since: Any, until: Any) -> tuple[Table, str]:
        gap = None if gap is None else _interval(gap)
        facts, batch, toml = self._native.model(layer, path, gap, _times(since, until))
        return self._answer((facts, batch), 5), toml

    def model(
        self,
        *,
        layer: str | None = None,
        path: str | None = None,
        gap: str | int | None = None,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Model:
        """Returns ``miot model save``: the I/O of the application as an abstract model."""
        return Model(*self._model(layer, path, gap, since, until))

    def simulate(
        self,
        storage: str | Iterable[str] = "cray",
        settings: Mapping[str, Any] | None = None,
        *,
        copies: int = 1,
        together: bool = False,
    ) -> Table:
        """Returns ``miot simulate``: one row per simulation of the traced programs on other storage.

        ``storage`` names machines: ``cray``, ``disk``, ``sata``, ``nvme``, ``parallel`` …
        ``settings`` sets or varies parameters by name, as ``--set`` and ``--vary``: a value, a list,
        or text such as ``4M..512M``. Times are nanoseconds. ``info`` has all figures.
        """
        settings = {key: _setting(value) for key, value in (settings or {}).items()}
        machines = _names(storage)
        if not machines:
            raise OptionError("no storage: name at least one, such as nvme")
        if not 1 <= copies <= 10_000:
            raise OptionError(f"copies {copies}: expected 1 to 10000")
        warn_of_losses(self._facts()["missing"], [])
        facts, batch = self._native.simulate(machines, list(settings.items()), copies, together)
        return Table(batch, json.loads(facts))

    def heatmap(
        self,
        by: str = "rank",
        what: str = "bytes",
        *,
        bins: int = 100,
        top: int = 100,
        since: Time | None = None,
        until: Time | None = None,
    ) -> Heatmap:
        """Returns ``what`` by row and interval of time, of outermost requests.

        ``by`` is ``rank``, ``node``, ``file`` or ``process``; the ``top`` rows with the largest totals
        are shown, the others in one more row. ``what`` is ``read_bytes``, ``write_bytes``, ``bytes``,
        ``requests`` or ``time`` (nanoseconds in requests). Bytes and time are distributed evenly over
        the duration of a request; requests count when they complete.
        """
        facts, cells = self._native.heatmap(by, what, bins, top, _times(since, until))
        info = json.loads(facts)
        warn_of_losses(info["missing"], info["unread"])
        return Heatmap(cells, info, by, what)

    @property
    def plot(self) -> Plots:
        """Pictures, with matplotlib: ``plot.heatmap()``, ``plot.throughput()``, ``plot.file(path)``,
        ``plot.durations()``."""
        from ._plot import Plots

        return Plots(self)

    def follow(
        self,
        *,
        since: Time | None = None,
        op: Names = None,
        layer: Names = None,
        path: Names = None,
        node: Names = None,
        pid: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> Follow:
        """Follows the trace: an iterator and an asynchronous iterator of new events.

        It begins with the events completed at or after ``since``, by default with the next ones. Each
        item is a :class:`Table` with the columns of :meth:`events`. It ends after ``timeout`` seconds
        without events, by default never; ``close()`` ends it.
        """
        if len(self.dirs) > 1:
            raise OptionError(f"{self.dir}: several traces are followed by `miot tail`, or here each of them")
        arguments = (_names(op), _names(layer), _names(path), _numbers(pid), _names(node), _moment(since))
        return Follow(_miot.Follow.directory(self.dir, *arguments), timeout)

    # --- display ---------------------------------------------------------------------------------

    def _overview(self) -> list[str]:
        facts = self._facts()
        lines = [f"trace {self.source}: {facts['parts']} parts, {facts['sealed']} of them sealed"]
        if facts["rows"] > _REPR_EVENTS:
            lines.append(f"at least {facts['rows']:,} events; summary() reads all of them")
            lines.append(_lost(facts["missing"]))
        else:
            totals = json.loads(self._native.summary(0, (None, None)))["totals"]
            lines.append(
                f"{totals['events']:,} events of {_counted(totals['threads'], 'thread')} of "
                f"{_counted(totals['processes'], 'process', 'processes')}; "
                f"{_counted(totals['files'], 'file')}; {_bytes(totals['bytes_read'])} read, "
                f"{_bytes(totals['bytes_written'])} written; {totals['time'] / 1e9:.3f} s in I/O within "
                f"{totals['wall'] / 1e9:.3f} s"
            )
            lines.append(_lost({"lost": totals["lost"], "filtered": totals["filtered"]}))
            found = Table(self._native.findings(False, None, (None, None))[1])
            lines.append(f"findings: {len(found)}")
            lines += [f"  {row['rule']}: {row['what']}" for row in list(found)[:8]]
        lines += [f"not read: {item['file']}: {item['reason']}" for item in facts["unread"][:8]]
        return lines

    def __repr__(self) -> str:
        return "\n".join(self._overview())

    def _repr_html_(self) -> str:
        first, *lines = (html.escape(line) for line in self._overview())
        items = "".join(f"<li>{line.strip()}</li>" for line in lines)
        return f"<div><b>{first}</b><ul>{items}</ul></div>"


def _first(table: Table, rows: int) -> Table:
    return Table(table._batch.first(rows), table.info)


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(_setting(one) for one in value)
    return str(value)


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _lost(missing: dict[str, int]) -> str:
    text = f"events lost: {missing['lost']:,}"
    if missing["lost"]:
        text += "; all figures are lower bounds"
    if missing["filtered"]:
        text += f"; left out by minimum duration or sampling: {missing['filtered']:,}"
    return text


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} PiB"


class Server:
    """A log-server (``host:port``). It can only be followed: for analyses open its trace directory."""

    def __init__(self, address: str, certificate: Any = None, key: Any = None, authority: Any = None) -> None:
        self.address = address
        self._files = (certificate, key, authority)

    def follow(
        self,
        *,
        since: Time | None = None,
        op: Names = None,
        layer: Names = None,
        path: Names = None,
        node: Names = None,
        pid: int | Iterable[int] | None = None,
        timeout: float | None = None,
    ) -> Follow:
        """Follows the events of the cluster; see :meth:`Trace.follow`."""
        arguments = (_names(op), _names(layer), _names(path), _numbers(pid), _names(node), _moment(since))
        return Follow(_miot.Follow.server(self.address, *self._files, *arguments), timeout)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(Trace, name):
            raise Error(
                f"{self.address}: a log-server can only be followed; for {name} open its trace directory"
            )
        raise AttributeError(f"a log-server has no {name}")

    def __repr__(self) -> str:
        return f"<miot.Server {self.address}: follow()>"


class Follow:
    """New events of a trace, as an iterator and an asynchronous iterator of :class:`Table`."""

    def __init__(self, native: Any, timeout: float | None) -> None:
        self._native = native
        self._timeout = timeout

    def next(self, timeout: float | None = None) -> Table | None:
        """Waits for events; returns ``None`` if none arrive within ``timeout`` seconds, or after the
        end. Without a timeout it waits until there are events."""
        batch = self._native.next(timeout)
        return None if batch is None else Table(batch)

    def __iter__(self) -> Iterator[Table]:
        while (table := self.next(self._timeout)) is not None:
            yield table
        self._warn()

    async def __aiter__(self) -> AsyncIterator[Table]:
        while (table := await self._next_async()) is not None:
            yield table
        self._warn()

    async def _next_async(self) -> Table | None:
        """Waits in another thread, in short steps so that a cancelled task ends soon."""
        waited = 0.0
        while self._timeout is None or waited < self._timeout:
            step = 0.2 if self._timeout is None else min(0.2, self._timeout - waited)
            table = await asyncio.to_thread(self.next, step)
            if table is not None or self._native.is_closed():
                return table
            waited += step
        return None

    def _warn(self) -> None:
        warn(self._native.notes())

    def close(self) -> None:
        """Ends the iteration, and the connection."""
        self._native.close()

    def __enter__(self) -> Follow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Model:
    """The I/O of an application as an abstract model; see docs/guide/model.md."""

    def __init__(self, phases: Table, toml: str) -> None:
        #: The phases, as :meth:`Trace.phases` returns them.
        self.phases = phases
        #: Facts about all phases.
        self.info = phases.info
        self._toml = toml

    def to_toml(self) -> str:
        """Returns the model as the file that ``miot model save`` writes."""
        return self._toml

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model to a new file."""
        with io.open(path, "x", encoding="utf-8") as file:
            file.write(self._toml)

    def __repr__(self) -> str:
        info = self.info
        return f"<miot.Model of {info['application']}: {len(self.phases)} families of phases of {info['processes']} processes>"
