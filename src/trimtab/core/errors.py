"""Every error that trimtab raises deliberately.

TrimtabError
 +-- ConfigError          a setting with an invalid value
 +-- LogError             a file that cannot serve as a training log
 |    +-- UnreadableLog   missing, damaged, or of no known format
 |    +-- NoUsableLoss    readable, but without a loss to judge
 +-- UnreadablePlan       a file that cannot serve as a training config
 +-- CorpusError          token files or their statistics that cannot be used
 +-- JournalError         a run directory that cannot be used as asked
 +-- RestoreError         a snapshot or checkpoint that cannot be returned to
 +-- MissingExtra         an optional package that was asked for is not installed
 +-- LabError             the lab cannot do this on this machine
 +-- NonFiniteRun         a protected run whose steps are not finite any more
 +-- RunStopped           a recovering run that a remedy cannot help; also a SystemExit

Each message says what is wrong, what was found, and what to do next.
"""


class TrimtabError(Exception):
    """Base class: catch this to catch everything that trimtab raises deliberately."""


class ConfigError(TrimtabError):
    """A setting has an invalid value."""


class LogError(TrimtabError):
    """A file cannot serve as a training log."""


class UnreadableLog(LogError):
    """The file is missing, damaged, or of no known format."""


class NoUsableLoss(LogError):
    """The log was read, but no column is a loss."""


class UnreadablePlan(TrimtabError):
    """A training config is missing, of no known format, or has a value of the wrong type."""


class CorpusError(TrimtabError):
    """A token file, or the statistics of token files, cannot be used as asked."""


class JournalError(TrimtabError):
    """A run directory cannot be used as asked."""


class RestoreError(TrimtabError):
    """A snapshot or checkpoint cannot be returned to."""


class MissingExtra(TrimtabError):
    """An optional package is not installed; the message names the pip command."""

    @classmethod
    def of(cls, needs: str, extra: str) -> "MissingExtra":
        """Return the error that says what is needed, and how the extra with it is installed."""
        # From a checkout: the package is on no index yet.
        return cls(f'{needs}; in a checkout of trimtab, run: pip install -e ".[{extra}]"')


class LabError(TrimtabError):
    """The lab cannot do this on this machine."""


class NonFiniteRun(TrimtabError):
    """A protected run is stopped: too many steps in a row were not finite."""


class RunStopped(TrimtabError, SystemExit):
    """A recovering run ends: no remedy in the process helps.

    If nothing catches it, the process exits with its code: 75 if a relaunch can help, 76 if not.
    """

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code
