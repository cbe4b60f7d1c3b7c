"""Ranks of processes that ``torch.multiprocessing.spawn`` starts; see :func:`miot.instrument`.

Such a process has no variable with its rank when it starts, and the tracer reads its environment only
then. So the process that starts it sets the variables.
"""

from __future__ import annotations

import functools
import multiprocessing.context
import os
import sys
import threading
from typing import Any, Callable

from ._miot import preloaded
from ._replace import replace

#: The rank and the number of ranks of a program that starts processes on its node: of MIOT, of
#: programs that follow the example "imagenet" of PyTorch, of Lightning, of Slurm.
_NODE = [("MIOT_RANK", "MIOT_WORLD_SIZE"), ("RANK", "WORLD_SIZE"), ("NODE_RANK", "NNODES"), ("SLURM_PROCID", "SLURM_NTASKS")]
#: The environment belongs to all threads.
_environment = threading.Lock()


def _node() -> tuple[int, int]:
    """Returns the number of this node and the number of nodes, each with the same number of processes."""
    for rank, size in _NODE:
        found = [os.environ.get(name, "") for name in (rank, size)]
        if all(text.isdecimal() for text in found) and (rank != "SLURM_PROCID" or "SLURM_STEP_ID" in os.environ):
            return int(found[0]), int(found[1])
    return 0, 1


class Ranked:
    """The function of each of these processes. It marks the regions of PyTorch there, too."""

    def __init__(self, function: Callable[..., Any], count: int) -> None:
        self.function = function
        node, nodes = _node()
        self.first, self.size = node * count, nodes * count

    def __call__(self, index: int, *args: Any) -> Any:
        if preloaded():
            from . import _torch

            _torch.instrument()
        return self.function(index, *args)


def _with_rank(start: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that starts a process, with the variables of its rank in its environment."""

    @functools.wraps(start)
    def wrapper(process: Any) -> Any:
        function, index = (*process._args, None, None)[:2]
        if not isinstance(function, Ranked) or not isinstance(index, int):
            return start(process)
        rank = {"MIOT_RANK": str(function.first + index), "MIOT_WORLD_SIZE": str(function.size)}
        with _environment:
            before = {name: os.environ.get(name) for name in rank}
            os.environ.update(rank)
            try:
                return start(process)
            finally:
                for name, value in before.items():
                    if value is None:
                        os.environ.pop(name, None)
                    else:
                        os.environ[name] = value

    return wrapper


def _start_ranked(start: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start)
    def wrapper(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, *more: Any, **options: Any) -> Any:
        # Within a rank of torchrun they are helpers of this rank.
        if "TORCHELASTIC_RUN_ID" in os.environ or isinstance(fn, Ranked):
            return start(fn, args, nprocs, *more, **options)
        return start(Ranked(fn, nprocs), args, nprocs, *more, **options)

    return wrapper


def instrument() -> None:
    """Replaces the functions that start processes."""
    import torch.multiprocessing

    # The package has a function of this name.
    module = sys.modules["torch.multiprocessing.spawn"]
    replace(module, "start_processes", _start_ranked)
    setattr(torch.multiprocessing, "start_processes", module.start_processes)
    replace(multiprocessing.context.SpawnProcess, "_Popen", _with_rank)
