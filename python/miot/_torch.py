"""Regions of programs that use PyTorch; see :func:`miot.instrument`."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from typing import Any, Callable

import torch
import torch.utils.data

from . import _ranks
from ._miot import Region
from ._region import region
from ._replace import replace

_loaders = itertools.count()
_nesting = threading.local()


def _marked(function: Callable[..., Any], make: Callable[..., Region]) -> Callable[..., Any]:
    """Returns the function within the region that ``make`` returns for its arguments."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with make(*args, **kwargs):
            return function(*args, **kwargs)

    return wrapper


class _Batches:
    """An iterator over a DataLoader, with the regions ``epoch``, ``fetch`` and ``step``."""

    def __init__(self, batches: Any, epoch: Region) -> None:
        self._batches = batches
        self._count = 0
        self._step: Region | None = None
        self._epoch: Region | None = epoch

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        self._end_step()
        fetch = region("fetch", step=self._count)
        fetch.__enter__()
        outer, _nesting.fetch = _is_fetching(), True
        try:
            batch = next(self._batches)
        except StopIteration:
            fetch.cancel()
            self._end()
            raise
        except BaseException:
            fetch.__exit__(*sys.exc_info())
            self._end()
            raise
        finally:
            _nesting.fetch = outer
        fetch.__exit__(None, None, None)
        self._step = region("step", step=self._count)
        self._step.__enter__()
        self._count += 1
        return batch

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def _end(self) -> None:
        self._end_step()
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.__exit__(None, None, None)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        # Not of an iterator whose creation failed.
        if name.startswith("_") and "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __del__(self) -> None:
        # The loop was left.
        if "_step" in self.__dict__:
            self._end()


def _iterate(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(self: Any) -> Any:
        # A loader is an ordinary object: numbers that its class does not know do no harm.
        number = self.__dict__.setdefault("_miot_loader", next(_loaders))
        epoch = self.__dict__.setdefault("_miot_epoch", 0)
        self.__dict__["_miot_epoch"] = epoch + 1
        # The call starts workers, which read at once.
        whole = region("epoch", loader=number, epoch=epoch)
        whole.__enter__()
        try:
            return _Batches(function(self), whole)
        except BaseException:
            whole.__exit__(*sys.exc_info())
            raise

    return wrapper


def _is_fetching() -> bool:
    """True in a fetch of this thread, and in a loader's worker."""
    return getattr(_nesting, "fetch", False) or torch.utils.data.get_worker_info() is not None


def _of_state(function: Callable[..., Any], make: Callable[..., Region]) -> Callable[..., Any]:
    """Returns the function within a region, except for calls that make samples: their files are data,
    not the state of the program."""
    marked = _marked(function, make)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return (function if _is_fetching() else marked)(*args, **kwargs)

    return wrapper


def _is_compiling() -> bool:
    compiler = getattr(torch, "compiler", None)
    return bool(compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling())


def _outermost(function: Callable[..., Any], name: str, make: Callable[..., Region]) -> Callable[..., Any]:
    """Returns the function within a region, except for calls within such a call of the same thread."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if getattr(_nesting, name, False) or _is_compiling():
            return function(*args, **kwargs)
        setattr(_nesting, name, True)
        try:
            with make(*args, **kwargs):
                return function(*args, **kwargs)
        finally:
            setattr(_nesting, name, False)

    return wrapper


def _call(function: Callable[..., Any]) -> Callable[..., Any]:
    marked = _outermost(function, "call", lambda module, *_, **__: region("forward", module=type(module).__name__))

    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A loader's worker may call modules to transform data, which is not the model.
        if torch.utils.data.get_worker_info() is not None:
            return function(self, *args, **kwargs)
        return marked(self, *args, **kwargs)

    return wrapper


def _file(file: Any, name: str) -> Region:
    return region(name, file=os.fspath(file)) if isinstance(file, (str, os.PathLike)) else region(name)


def _save(obj: Any, f: Any, *_: Any, **__: Any) -> Region:
    return _file(f, "checkpoint")


def _load(f: Any, *_: Any, **__: Any) -> Region:
    return _file(f, "restart")


def _mark_step(optimizer: type) -> None:
    if "step" in optimizer.__dict__:
        replace(optimizer, "step", lambda step: _outermost(step, "step", lambda *_, **__: region("optimizer")))


def _optimizers(base: type) -> Any:
    yield base
    for derived in base.__subclasses__():
        yield from _optimizers(derived)


def instrument() -> None:
    """Replaces functions of PyTorch by functions that mark regions."""
    _ranks.instrument()
    replace(torch.utils.data.DataLoader, "__iter__", _iterate)
    replace(torch.nn.Module, "__call__", _call)
    # `Tensor.backward` calls it by this name.
    replace(torch.autograd, "backward", lambda of: _marked(of, lambda *_, **__: region("backward")))
    replace(torch, "save", lambda save: _of_state(save, _save))
    replace(torch, "load", lambda load: _of_state(load, _load))
    optimizer = torch.optim.Optimizer
    for of in _optimizers(optimizer):
        if of is not optimizer:
            _mark_step(of)

    def with_step(init: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(init)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            # Classes that are defined later.
            for of in type(self).__mro__:
                if of is not optimizer and issubclass(of, optimizer):
                    _mark_step(of)
            init(self, *args, **kwargs)

        return wrapper

    replace(optimizer, "__init__", with_step)
    distributed = sys.modules.get("torch.distributed.checkpoint")
    for name in ("save", "async_save", "save_state_dict"):
        if distributed is not None:
            replace(distributed, name, lambda save: _marked(save, lambda *_, **__: region("checkpoint")))
