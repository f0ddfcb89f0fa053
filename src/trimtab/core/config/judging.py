"""How a run is judged: the rule set and its sensitivity."""

from dataclasses import dataclass
from enum import StrEnum

from trimtab.core.config.section import Section, require


class Rules(StrEnum):
    """The rule sets to judge by."""

    TRIMTAB = "trimtab"
    """Trimtab's rules (docs/detection.md)."""
    TEXTBOOK = "textbook"
    """The textbook decision tree, unchanged: the baseline to beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectConfig(Section):
    """Trimtab's rules. Thresholds follow the noise of the run; one setting scales them all."""

    threshold_scale: float = 1.0
    """Multiplies all thresholds for spikes and levels: above 1 fewer alarms, below 1 earlier ones.
    At 1 the false alarms are those of the published scoreboard."""

    def __post_init__(self) -> None:
        require(
            0.5 <= self.threshold_scale <= 10,
            "threshold_scale must be in 0.5..10",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextbookConfig(Section):
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

    def __post_init__(self) -> None:
        require(self.window >= 2, f"window must be at least 2, got {self.window}")
        for name in ("recovery_records", "rise_records", "norm_steps", "reopen_records"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")
        require(self.spike_sigmas > self.recovery_sigmas, "spike_sigmas must top recovery_sigmas")
        require(self.norm_ratio > 1, f"norm_ratio must be over 1, got {self.norm_ratio}")
