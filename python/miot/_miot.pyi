"""The native part of the package. ``miot`` has the interface for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar, final

__version__: str

_Times = tuple[int | None, int | None]
_Answer = tuple[str, "Batch"]

def moment(text: str) -> int: ...
def interval(text: str) -> int: ...
def address(text: str) -> str | None: ...
def operation_classes() -> dict[str, str]: ...
def query(command: list[str]) -> Stream: ...
def preloaded() -> bool: ...
def recording() -> bool:
    """Returns whether regions are recorded now: a tracer is preloaded (``miot run``) and not dormant."""

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

@final
class region:
    """A named part of the run of this program, such as an epoch or a checkpoint.

    >>> with miot.region("epoch", epoch=3):
    ...     train()
    >>> @miot.region("preprocess", kind="compute")
    ... def preprocess(sample): ...
    >>> for batch in miot.region("fetch").iter(loader): ...
    >>> for epoch in miot.region("epoch").loop(range(10), number="epoch"): ...

    The preloaded tracer records it as an event of the layer ``app``: ``path`` is the name, ``path2``
    followed by ``arg`` the attributes. The last attribute that is a number is ``arg``, so that a value
    that is different each time does not make a text of its own. The attribute ``kind`` (``compute``,
    ``fetch``, ``checkpoint``, ``io`` or ``other``) says what the program does in the region, if its name
    does not. ``result`` is 0, the negative ``errno`` of an ``OSError`` that left the region, or -125
    (ECANCELED) for any other exception.

    Regions may be nested, and may overlap in coroutines. Without a tracer, or while nothing is recorded,
    a region does nothing. An object may be entered again, also while it is open.
    """

    def __new__(cls, name: str, /, **attributes: object) -> region: ...
    def __enter__(self) -> region: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def __call__(self, function: _F) -> _F:
        """Returns a function each of whose calls is such a region. For a coroutine or generator the
        region lasts until its end."""
    def iter(self, iterable: Iterable[_T], number: str | None = "step") -> Iterator[_T]:
        """Yields the items. Each retrieval of an item is such a region, with its number from 0 as an
        attribute of this name."""
    def loop(self, iterable: Iterable[_T], number: str | None = "step") -> Iterator[_T]:
        """Yields the items. The use of each item by the loop is such a region."""
    def again(self, **attributes: object) -> region:
        """Returns a new region with the same name and attributes, and these in addition."""
    def cancel(self) -> None:
        """Ends an entered region without recording it."""

@final
class Stream:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def next(self) -> Batch | None: ...
    def raise_failure(self) -> None: ...
    def notes(self) -> list[str]: ...

@final
class Batch:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def __len__(self) -> int: ...
    def columns(self) -> list[str]: ...
    def column(self, name: str) -> list[Any]: ...
    def row(self, row: int) -> dict[str, Any]: ...
    def first(self, rows: int) -> Batch: ...

@final
class Directory:
    def __new__(cls, dirs: list[str]) -> Directory: ...
    def set(self) -> tuple[list[os.PathLike[str]], list[str]]: ...
    def facts(self, all: bool) -> str: ...
    def events(
        self,
        columns: list[str] | None,
        op: list[str],
        layer: list[str],
        path: list[str],
        pid: list[int],
        node: list[str],
        job: list[str],
        times: _Times,
    ) -> Stream: ...
    def table(self, name: str) -> tuple[list[str], Batch]: ...
    def summary(self, files: int, times: _Times) -> str: ...
    def counters(
        self,
        by: str,
        depth: int,
        layer: list[str],
        job: list[str],
        path: list[str],
        sort: str | None,
        top: int | None,
        block_size: str | None,
        times: _Times,
    ) -> _Answer: ...
    def operations(
        self, layer: list[str], job: list[str], path: list[str], sort: str | None, times: _Times
    ) -> _Answer: ...
    def layers(self, times: _Times) -> _Answer: ...
    def regions(self, region: str | None, times: _Times) -> _Answer: ...
    def bursts(self, interval: int, times: _Times) -> _Answer: ...
    def idle(self, interval: int, times: _Times) -> _Answer: ...
    def cycles(self, times: _Times) -> _Answer: ...
    def patterns(self, system_files: bool, most: int, times: _Times) -> _Answer: ...
    def findings(self, system_files: bool, block_size: str | None, times: _Times) -> _Answer: ...
    def model(
        self, layer: str | None, path: str | None, gap: int | None, times: _Times
    ) -> tuple[str, Batch, str]: ...
    def heatmap(self, by: str, what: str, bins: int, most: int, times: _Times) -> tuple[str, bytes]: ...
    def simulate(
        self, storage: list[str], settings: list[tuple[str, str]], copies: int, together: bool
    ) -> _Answer: ...

@final
class Follow:
    @staticmethod
    def directory(
        dir: str,
        op: list[str],
        layer: list[str],
        path: list[str],
        pid: list[int],
        node: list[str],
        since: int | None,
    ) -> Follow: ...
    @staticmethod
    def server(
        address: str,
        certificate: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        authority: str | os.PathLike[str] | None,
        op: list[str],
        layer: list[str],
        path: list[str],
        pid: list[int],
        node: list[str],
        since: int | None,
    ) -> Follow: ...
    def next(self, timeout: float | None) -> Batch | None: ...
    def close(self) -> None: ...
    def is_closed(self) -> bool: ...
    def notes(self) -> list[str]: ...
