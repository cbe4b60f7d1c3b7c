"""Replaces functions of libraries."""

from __future__ import annotations

import inspect
from typing import Any, Callable

#: Set on functions that replace others, so that each is replaced once.
_MARK = "_miot_region"


def replace(owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces a function of a module or class by the one that ``wrap`` returns for it. Does nothing if
    it was replaced before, or if the owner has no such function."""
    function = getattr(owner, name, None)
    if function is None or hasattr(function, _MARK):
        return
    new = wrap(function)
    setattr(new, _MARK, True)
    is_static = inspect.isclass(owner) and isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(new) if is_static else new)
