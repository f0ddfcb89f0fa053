"""The exit codes of the command; docs/exit-codes.md has them with those of each subcommand."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every subcommand."""

    CLEAN = 0
    """Nothing found, or done."""
    FINDINGS = 1
    """Something was found, or not everything could be done."""
    USAGE = 2
    """Usage error: an option, setting or argument that cannot be right."""
    UNREADABLE = 3
    """The input cannot be used: not readable, no usable loss, or an extra is not installed."""
    BUG = 70
    """A bug in trimtab, with a traceback (EX_SOFTWARE of sysexits.h)."""
