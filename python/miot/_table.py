"""Rows: streamed from a trace, or in memory. Both are Arrow tables for other libraries."""

from __future__ import annotations

import html

import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterator

from ._errors import LossWarning

if TYPE_CHECKING:
    import numpy
    import pandas
    import polars
    import pyarrow

#: Rows of a table that ``repr`` shows.
_SHOWN = 20
#: Warnings of one call.
_MOST_WARNINGS = 20
#: Columns of a table that ``repr`` shows.
_SHOWN_COLUMNS = 12


def _need(module: str, purpose: str) -> Any:
    """Imports an optional library."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"{purpose} needs {package}: pip install {package}") from error


def warn(notes: list[str], stacklevel: int = 3) -> None:
    """Warns that figures are lower bounds, with the texts of the tool."""
    for note in notes[:_MOST_WARNINGS]:
        warnings.warn(note, LossWarning, stacklevel=stacklevel + 1)
    if len(notes) > _MOST_WARNINGS:
        text = f"… and {len(notes) - _MOST_WARNINGS} more notes like these"
        warnings.warn(text, LossWarning, stacklevel=stacklevel + 1)


def warn_of_losses(
    missing: dict[str, int] | None, unread: list[dict[str, Any]], stacklevel: int = 3
) -> None:
    """Warns if events are missing, or files could not be read."""
    notes = []
    if missing and missing["lost"] > 0:
        notes.append(
            f"{missing['lost']} events were lost: all figures are lower bounds; see docs/reference/losses.md"
        )
    if missing and missing["filtered"] > 0:
        notes.append(
            f"{missing['filtered']} requests were left out by minimum duration or sampling: "
            "counts do not include them"
        )
    notes += [f"not read: {_unread_text(item)}: figures are lower bounds" for item in unread]
    warn(notes, stacklevel)


def _unread_text(item: dict[str, Any]) -> str:
    text = f"{item['file']}: {item['reason']}"
    if item["rows"] is not None:
        return f"{text}; {item['rows']} row{' is' if item['rows'] == 1 else 's are'} not read"
    if item["bytes"] is not None:
        return f"{text}; {item['bytes']} bytes are not read"
    return text


class _Arrow:
    """Conversions of anything with an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        raise NotImplementedError

    def to_arrow(self) -> pyarrow.Table:
        """Returns a ``pyarrow.Table``."""
        pyarrow = _need("pyarrow", "to_arrow()")
        with pyarrow.RecordBatchReader.from_stream(self) as reader:
            return reader.read_all()

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Returns a ``pandas.DataFrame``, by way of pyarrow. ``options`` are those of
        ``pyarrow.Table.to_pandas``. Times are ``datetime64[ns, UTC]``, names are categories."""
        _need("pandas", "to_pandas()")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """Returns a ``polars.DataFrame``."""
        return _need("polars", "to_polars()").DataFrame(self)


class Events(_Arrow):
    """Selected events of a trace, read when they are used, again each time.

    The object has an Arrow stream (``__arrow_c_stream__``): DuckDB, polars, pyarrow and others read
    it without a copy, in memory of a few batches. Iteration yields batches as :class:`Table`.
    """

    def __init__(self, stream: Callable[[], Any], missing: dict[str, int] | None = None) -> None:
        self._stream = stream
        self._missing = missing

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        warn_of_losses(self._missing, [])
        return self._stream().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._stream().__arrow_c_schema__()

    @property
    def schema(self) -> pyarrow.Schema:
        """Names and types of the columns, as ``pyarrow.Schema``."""
        return _need("pyarrow", "schema").schema(self)

    def __iter__(self) -> Iterator[Table]:
        """Yields batches as :class:`Table`, in memory of a few batches."""
        warn_of_losses(self._missing, [])
        stream = self._stream()
        while (batch := stream.next()) is not None:
            yield Table(batch)
        warn(stream.notes())

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """Yields batches as ``pyarrow.RecordBatch``, in memory of a few batches."""
        pyarrow = _need("pyarrow", "batches()")
        warn_of_losses(self._missing, [])
        stream = self._stream()
        try:
            with pyarrow.RecordBatchReader.from_stream(stream) as reader:
                yield from reader
        except GeneratorExit:
            raise
        except BaseException:
            # The stream has the exception itself, its consumer only the text.
            stream.raise_failure()
            raise
        warn(stream.notes())

    def to_arrow(self) -> pyarrow.Table:
        """Returns all rows as ``pyarrow.Table``. Ctrl-C ends the reading."""
        pyarrow = _need("pyarrow", "to_arrow()")
        warn_of_losses(self._missing, [])
        stream = self._stream()
        try:
            with pyarrow.RecordBatchReader.from_stream(stream) as reader:
                table = reader.read_all()
        except BaseException:
            stream.raise_failure()
            raise
        warn(stream.notes())
        return table

    def to_polars(self) -> polars.DataFrame:
        """Returns all rows as ``polars.DataFrame``. Ctrl-C ends the reading."""
        polars = _need("polars", "to_polars()")
        warn_of_losses(self._missing, [])
        stream = self._stream()
        try:
            table = polars.DataFrame(stream)
        except BaseException:
            stream.raise_failure()
            raise
        warn(stream.notes())
        return table

    def __repr__(self) -> str:
        return "<miot.Events: to_arrow(), to_pandas(), to_polars(), batches(), or any reader of Arrow streams>"


class Table(_Arrow):
    """Rows in memory, with the names of the tool's JSON output as columns.

    ``len(table)``, ``table["column"]``, ``table[3]``, iteration over rows as dictionaries, and the
    conversions ``to_pandas()``, ``to_polars()``, ``to_arrow()``. ``table.info`` has the facts about
    all rows, such as ``missing``: the number of lost events.
    """

    def __init__(self, batch: Any, info: dict[str, Any] | None = None) -> None:
        self._batch = batch
        #: Facts about all rows, with the names of the tool's JSON output.
        self.info: dict[str, Any] = info or {}

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._batch.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._batch.__arrow_c_schema__()

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return self._batch.columns()

    def __len__(self) -> int:
        return len(self._batch)

    def __getitem__(self, key: str | int) -> Any:
        """Returns a column by name, or a row by number. Times are nanoseconds since 1970."""
        return self._batch.column(key) if isinstance(key, str) else self._batch.row(key)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in range(len(self)):
            yield self._batch.row(row)

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns the columns by name."""
        return {name: self._batch.column(name) for name in self.columns}

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Returns a ``pandas.DataFrame``; ``options`` are those of ``pyarrow.Table.to_pandas``."""
        pandas = _need("pandas", "to_pandas()")
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            return pandas.DataFrame(self.to_dict(), columns=self.columns)
        return super().to_pandas(**options)

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        names = self.columns[:_SHOWN_COLUMNS]
        rows = [self._batch.row(row) for row in range(min(len(self), _SHOWN))]
        return names, [[_short(row[name]) for name in names] for row in rows]

    def _more(self) -> str:
        rows, columns = len(self) - _SHOWN, len(self.columns) - _SHOWN_COLUMNS
        parts = [f"{rows} more rows"] * (rows > 0) + [f"{columns} more columns"] * (columns > 0)
        return f"… and {' and '.join(parts)}" if parts else ""

    def __repr__(self) -> str:
        names, rows = self._cells()
        widths = [max(len(line[at]) for line in [names, *rows]) for at in range(len(names))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)) for line in [names, *rows]]
        return "\n".join([*(line.rstrip() for line in lines), *filter(None, [self._more()])])

    def _repr_html_(self) -> str:
        names, rows = self._cells()
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        more = f"<p>{html.escape(self._more())}</p>" if self._more() else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= 60 else "…" + text[-59:]


class Heatmap:
    """A heat map: cells by row and interval of time.

    ``rows`` are the names of the rows. ``edges`` are the ``bins + 1`` edges of the intervals in
    nanoseconds since 1970. ``values`` is a numpy array of unsigned integers of the shape
    ``(len(rows), bins)``, in bytes, requests or nanoseconds. ``cells`` are the same values as lists.
    """

    def __init__(self, cells: bytes, info: dict[str, Any], by: str, what: str) -> None:
        self._cells = cells
        #: What a row is, and what a cell sums.
        self.by, self.what = by, what
        #: Number of intervals, names of the rows.
        self.bins: int = info["bins"]
        self.rows: list[str] = info["rows"]
        #: Begin and end in nanoseconds since 1970.
        self.begin: int = info["begin"]
        self.end: int = info["end"]
        self.info = info

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and of intervals."""
        return len(self.rows), self.bins

    @property
    def edges(self) -> list[int]:
        """Edges of the intervals, nanoseconds since 1970."""
        span = self.end - self.begin
        return [self.begin + span * at // self.bins for at in range(self.bins + 1)]

    @property
    def cells(self) -> list[list[int]]:
        """Values, row by row."""
        if not self.rows:
            return []
        return memoryview(self._cells).cast("Q", shape=[len(self.rows), self.bins]).tolist()

    @property
    def values(self) -> numpy.ndarray:
        """Values as a numpy array, without a copy."""
        numpy = _need("numpy", "values")
        return numpy.frombuffer(self._cells, dtype=numpy.uint64).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray:
        values = self.values
        if dtype is not None and dtype != values.dtype:
            return values.astype(dtype)
        return values.copy() if copy else values

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a ``pandas.DataFrame`` with a row per name, and a column per begin of an interval."""
        pandas = _need("pandas", "to_pandas()")
        columns = pandas.to_datetime(self.edges[:-1], unit="ns", utc=True)
        return pandas.DataFrame(self.values, index=pandas.Index(self.rows, name=self.by), columns=columns)

    def __repr__(self) -> str:
        return f"<miot.Heatmap: {self.what} of {len(self.rows)} {self.by}s in {self.bins} intervals>"
