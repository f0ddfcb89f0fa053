"""What the command's exit code says."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every subcommand."""

    CLEAN = 0
    FINDINGS = 1
    USAGE = 2
    UNREADABLE = 3
