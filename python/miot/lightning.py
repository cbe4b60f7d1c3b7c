"""Regions of programs that use Lightning, as a callback of its ``Trainer``.

>>> from miot.lightning import RegionCallback
>>> trainer = Trainer(callbacks=[RegionCallback()])

``import miot.lightning`` needs the package ``lightning`` or ``pytorch_lightning``.
"""

from __future__ import annotations

import functools
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from ._miot import Region
from ._region import region


class RegionCallback(Callback):
    """Marks the regions ``epoch``, ``fetch``, ``step``, ``backward``, ``optimizer``, ``validate`` and
    ``checkpoint`` of a training. ``fetch`` is the time between two batches of an epoch."""

    def __init__(self) -> None:
        self._open: dict[str, Region] = {}

    def _begin(self, name: str, **attributes: Any) -> None:
        self._end(name)
        self._open[name] = region(name, **attributes)
        self._open[name].__enter__()

    def _end(self, name: str) -> None:
        one = self._open.pop(name, None)
        if one is not None:
            one.__exit__(None, None, None)

    def _cancel(self, name: str) -> None:
        one = self._open.pop(name, None)
        if one is not None:
            one.cancel()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        save = trainer.save_checkpoint
        if hasattr(save, "_miot_region"):
            return

        @functools.wraps(save)
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            with region("checkpoint", file=str(filepath)):
                return save(filepath, *args, **kwargs)

        save_checkpoint._miot_region = True  # type: ignore[attr-defined]
        trainer.save_checkpoint = save_checkpoint

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._begin("epoch", epoch=trainer.current_epoch)
        self._begin("fetch", step=0)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._end("fetch")
        self._begin("step", step=batch_idx)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self._begin("backward")

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self._end("backward")

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._begin("optimizer")

    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self._end("optimizer")

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._end("optimizer")
        self._end("step")
        self._begin("fetch", step=batch_idx + 1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        # There was no further batch.
        self._cancel("fetch")
        self._end("epoch")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        # A validation within an epoch is not a wait for a batch.
        self._cancel("fetch")
        self._begin("validate")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._end("validate")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        for name in ["backward", "optimizer", "fetch", "step", "validate", "epoch"]:
            self._end(name)
