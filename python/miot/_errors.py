"""Exceptions and warnings."""


class Error(Exception):
    """A trace, a log-server or a program of MIOT failed. The text says what was found and what to do."""


class OptionError(Error, ValueError):
    """An argument has a value that is not possible."""


class LossWarning(UserWarning):
    """Events are missing in the trace: counts, bytes and times are lower bounds."""
