"""MIOT: every I/O request of a cluster as one ordered, queryable trace.

>>> import miot
>>> trace = miot.open("miot-trace")
>>> trace.stat(by="file", top=10).to_pandas()

Parts of a program are marked as regions, which are in the trace of ``miot run -- python program.py``:

>>> with miot.region("epoch", epoch=3):
...     train()

Times are nanoseconds, sizes are bytes, rates are bytes per second, unless the name of a column says
otherwise. Columns have the names of the JSON output of the tool ``miot``.
"""

from ._errors import Error, LossWarning, OptionError
from ._instrument import instrument
from ._miot import Region, __version__, recording
from ._region import region
from ._table import Events, Heatmap, Table
from ._trace import Follow, Server, Trace, open

__all__ = [
    "Error",
    "Events",
    "Follow",
    "Heatmap",
    "LossWarning",
    "OptionError",
    "Region",
    "Server",
    "Table",
    "Trace",
    "__version__",
    "instrument",
    "open",
    "recording",
    "region",
]


def load_ipython_extension(ipython: object) -> None:
    """``%load_ext miot`` defines ``%%miot``, which traces a cell of a notebook."""
    from ._magic import load_ipython_extension

    load_ipython_extension(ipython)
