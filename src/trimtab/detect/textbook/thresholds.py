"""The thresholds of the textbook decision tree: constants, because they are what it says."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookThresholds:
    """The thresholds of the textbook decision tree, as it states them.

    Where it counts steps, trimtab counts records: in a log written every 50 steps there are no
    others.
    """

    window: int = 100
    """Losses in the rolling mean and deviation. Source: textbook tree, question 2.1."""

    spike_sigmas: float = 3.0
    """A loss above mean + this many deviations is a spike. Source: question 2.1."""

    recovery_sigmas: float = 0.5
    """Back at or under mean + this many deviations is recovered. Source: question 2.2."""

    recovery_records: int = 50
    """Records within which a recoverable spike is back. Source: question 2.2."""

    long_tail_ratio: float = 30.0
    """A gradient norm over this many times its rolling mean points at rare tokens.
    Source: question 2.3."""

    rise_records: int = 200
    """Consecutive rising losses that make a divergence. Source: question 4.1."""

    norm_ratio: float = 2.0
    """A weight norm this many times larger or smaller within `norm_steps`. Source: question 4.3."""

    norm_steps: int = 200
    """Steps over which a weight norm is compared with itself. Source: question 4.3."""

    scale_floor: float = 1.0
    """A loss scale under this has collapsed. Source: question 3.2."""

    reopen_records: int = 16
    """An alarm this soon after an incident closed reopens it. Source: not in the tree;
    16 is how long a recovered loss must stay down in the classifier of trimtab's detector study."""


TEXTBOOK_THRESHOLDS = TextbookThresholds()
"""The textbook as it stands."""
