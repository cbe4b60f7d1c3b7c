"""Regions: named parts of the run of this program."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from typing import Any, Callable, Iterable, Iterator

from ._miot import Region


def region(name: str, /, **attributes: object) -> Region:
    """Returns a named part of the run of this program, such as an epoch or a checkpoint.

    >>> with miot.region("epoch", epoch=3):
    ...     train()
    >>> @miot.region("preprocess", kind="compute")
    ... def preprocess(sample): ...
    >>> for batch in miot.region("fetch").iter(loader): ...
    >>> for epoch in miot.region("epoch").loop(range(10), number="epoch"): ...

    The preloaded tracer records it as an event of the layer ``app``: ``path`` is the name, ``path2``
    followed by ``arg`` the attributes. The last attribute that is a number is ``arg``, so that a value
    that is different each time does not make a text of its own. The attribute ``kind`` (``compute``,
    ``fetch``, ``checkpoint``, ``io`` or ``other``) states what the program does in the region, if its
    name does not. ``result`` is 0, the negative ``errno`` of an ``OSError`` that left the region, or -125
    (ECANCELED) for any other exception.

    Regions may be nested, and may overlap in coroutines. Without a tracer, or while nothing is recorded,
    a region does nothing. An object may be entered again, also while it is open.
    """
    return Region(name, attributes)


def decorated(of: Region, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function each of whose calls is a region. For a coroutine, generator or asynchronous
    generator the region lasts until its end."""
    if not callable(function):
        raise TypeError(
            f"a region decorates functions, not {type(function).__name__}: use region.iter() or region.loop() "
            "for iterables"
        )
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with of.again():
                return await function(*args, **kwargs)

        return coroutine
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            with of.again():
                async for item in function(*args, **kwargs):
                    yield item

        return asynchronous
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Any:
            with of.again():
                return (yield from function(*args, **kwargs))

        return generator

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        with of.again():
            return function(*args, **kwargs)

    return plain


def retrievals(of: Region, iterable: Iterable[Any], number: str | None) -> Iterator[Any]:
    """Yields the items. Each call of ``next`` is a region, numbered from 0 by the attribute ``number``."""
    iterator = iter(iterable)
    for count in itertools.count():
        one = of.again() if number is None else of.again(**{number: count})
        one.__enter__()
        try:
            item = next(iterator)
        except StopIteration:
            # There was no item.
            one.cancel()
            return
        except BaseException:
            one.__exit__(*sys.exc_info())
            raise
        one.__exit__(None, None, None)
        yield item


def uses(of: Region, iterable: Iterable[Any], number: str | None) -> Iterator[Any]:
    """Yields the items. The time until the next item is requested is a region, numbered from 0 by the
    attribute ``number``."""
    for count, item in enumerate(iterable):
        with of.again() if number is None else of.again(**{number: count}):
            yield item
