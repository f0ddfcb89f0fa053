"""The exit codes of the command."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every subcommand."""

    CLEAN = 0
    """Nothing found."""
    FINDINGS = 1
    USAGE = 2
    """Usage error: an option, setting or argument that cannot be right."""
    UNREADABLE = 3
    """The file cannot be read, or has no usable loss."""
