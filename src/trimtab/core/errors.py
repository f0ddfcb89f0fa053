"""Every error that trimtab raises on purpose.

TrimtabError
 +-- ConfigError          a setting that cannot be right
 +-- LogError             a file that cannot serve as a training log
 |    +-- UnreadableLog   not there, not text, not of the format it claims
 |    +-- NoUsableLoss    read well, but no loss to judge
 +-- UnreadablePlan       a file that cannot serve as a training config
 +-- JournalError         a run directory that cannot be used as asked
 +-- RestoreError         a snapshot or checkpoint that cannot be returned to
 +-- MissingExtra         an optional package that was asked for is not installed
 +-- LabError             the lab cannot do on this machine what was asked

Each message says what is wrong, what was found, and what to do next.
"""


class TrimtabError(Exception):
    """Root of the tree: catch this to catch all that trimtab raises on purpose."""


class ConfigError(TrimtabError):
    """A setting has a value that cannot be right."""


class LogError(TrimtabError):
    """A file cannot serve as a training log."""


class UnreadableLog(LogError):
    """The file is missing, is not text, or is not of the format it claims to be."""


class NoUsableLoss(LogError):
    """The log was read, but no column of it is a loss."""


class UnreadablePlan(TrimtabError):
    """A training config is missing, of no known format, or has a value of the wrong kind."""


class JournalError(TrimtabError):
    """A run directory cannot be used as asked."""


class RestoreError(TrimtabError):
    """A snapshot or checkpoint cannot be returned to."""


class MissingExtra(TrimtabError):
    """An optional package is not installed; the message names the pip command."""


class LabError(TrimtabError):
    """The lab cannot do on this machine what was asked."""
