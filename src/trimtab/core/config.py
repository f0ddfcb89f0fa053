"""Settings: frozen dataclasses with a doc under each field, from TOML or a dict, to JSON.

Every setting has a default; a name that is not a setting is an error.
"""

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from trimtab.core.errors import ConfigError
from trimtab.core.settings import Section, require


class Rules(StrEnum):
    """The rule sets to judge by."""

    TRIMTAB = "trimtab"
    """Trimtab's rules (docs/detection.md)."""
    TEXTBOOK = "textbook"
    """The textbook decision tree, unchanged: the baseline to beat."""


class Mode(StrEnum):
    """What a guard may do to the run it watches."""

    OBSERVE = "observe"
    """Nothing: the trained bits are identical to those of a run without trimtab."""
    PROTECT = "protect"
    """Discard bad steps before they reach the weights."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig(Section):
    """Writing a run's journal."""

    queue_records: int = 8192
    """Records that may wait for the disk before new ones are dropped and counted. At 10 steps a
    second this covers an outage of 13 minutes and takes a few MB."""

    segment_records: int = 16384
    """Records in one file before the next one is started and this one is sealed into columns."""

    flush_seconds: float = 0.1
    """The longest a record waits before it is handed to the operating system."""

    close_seconds: float = 10.0
    """The longest that closing waits for a disk that does not respond."""

    def __post_init__(self) -> None:
        require(self.queue_records >= 1, "queue_records must be at least 1")
        require(self.segment_records >= 1, "segment_records must be at least 1")
        require(0 < self.flush_seconds <= 0.5, "flush_seconds must be in (0, 0.5]: followers wait")
        require(self.close_seconds > 0, "close_seconds must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfig(Section):
    """How a live run is watched."""

    lag_steps: int = 2
    """Steps between taking a value on the device and reading it on the host. Two let the device
    run ahead by as much as training loops usually do; equal on all ranks."""

    telemetry_every: int = 10
    """Steps from one measurement of the norms of parameters, updates and moments to the next.
    Source: stability guides log them every 10 steps."""

    activations: bool = True
    """Whether the outputs of the model's blocks are measured by forward hooks."""

    max_nonfinite_steps: int = 100
    """Steps in a row that are not finite before a protected run is stopped, and before an observed
    one logs a warning. Source: a GradScaler that starts at 2^16 needs at most 40 to find its
    scale."""

    rank_timeout_seconds: float = 1800.0
    """How long a rank waits for the others, at the start and in a step. Source: the default of
    torch's gloo groups; a checkpoint of one rank may take many minutes."""

    def __post_init__(self) -> None:
        require(self.max_nonfinite_steps >= 1, "max_nonfinite_steps must be at least 1")
        require(self.rank_timeout_seconds > 0, "rank_timeout_seconds must be positive")
        require(0 <= self.lag_steps <= 100, "lag_steps must be in 0..100")
        require(self.telemetry_every >= 1, "telemetry_every must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig(Section):
    """When a step of a protected run is discarded.

    Sigmas are median absolute deviations scaled to a normal distribution, over the accepted steps
    of the window. On 38,000 healthy steps of two public GPT-2 runs the largest values were: loss
    6.8 sigmas, norm 6.5 times its median; never were both over 6 sigmas with the norm at twice its
    median. None of the limits below is reached there.
    """

    window: int = 128
    """Steps that the usual is taken from. Source: 78 public runs, where 64 to 192 were equal."""

    min_history: int = 96
    """Accepted steps in the window before a finite step can be discarded: three quarters of it. A
    run that has just begun throws its norm about: with 64, two of 24,000 healthy steps of the lab
    were discarded, both at about step 75."""

    norm_ratio: float = 10.0
    """A gradient norm over so many times its median is discarded, whatever the loss. Source: 5
    times are passed once in 19,000 healthy steps, 8 times never."""

    norm_sigmas: float = 14.0
    """And over so many sigmas of its logarithm, so that a run whose norm jumps about is left alone.
    Source: batches of a single row of 32 tokens reach 12.9 and are nothing but noise; the norm of a
    spike or of a flipped bit is far over both limits."""

    loss_sigmas: float = 25.0
    """A loss over so many sigmas is discarded, whatever the norm. Source: the loss of one rank has
    outliers of over 12 sigmas that are nothing but hard batches."""

    loss_excess: float = 0.1
    """And over its median by this share. Source: bumps of up to 8 % come from the order of the data
    alone, in several runs at the same step."""

    joint_sigmas: float = 6.0
    """If loss and norm are both over so many sigmas, and the loss over `loss_excess`, less is
    enough: both are never there together with `joint_ratio` in healthy runs."""

    joint_ratio: float = 2.0
    """How many times its median the norm must be then."""

    max_consecutive_discards: int = 20
    """Finite steps discarded in a row before the gate gives in and learns anew. Source: 5 to 20
    batches are what people skip by hand behind a spike."""

    max_recent_discards: int = 32
    """The same for steps discarded now and then; an eighth of `discard_memory_steps`."""

    discard_memory_steps: int = 256
    """How fast those are forgotten: each counts less by one part in so many with every step."""

    clip_excess: bool = False
    """Whether a gradient that is too large for the usual and too small to be discarded is scaled
    down to the median norm."""

    excess_ratio: float = 3.0
    """The norm from which that happens, by its median."""

    excess_sigmas: float = 8.0
    """And in sigmas of its logarithm. Source: both are passed by 0.8 in 10,000 healthy steps."""

    promote: bool = True
    """Whether Adam, AdamW, SGD and Adagrad are made fused, the form that needs no host read."""

    def __post_init__(self) -> None:
        require(2 <= self.min_history <= self.window, "min_history must be in 2..window")
        sigmas = ("norm_sigmas", "loss_sigmas", "joint_sigmas", "excess_sigmas")
        for name in (*sigmas, "loss_excess"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        for name in ("norm_ratio", "joint_ratio", "excess_ratio"):
            require(getattr(self, name) > 1, f"{name} must be over 1")
        for name in ("max_consecutive_discards", "max_recent_discards", "discard_memory_steps"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig(Section):
    """Checking training configs."""

    off: tuple[str, ...] = ()
    """Ids of rules to skip, such as TT064."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """All settings of a run."""

    rules: Rules = Rules.TRIMTAB
    """The rule set to judge by."""
    live: LiveConfig = field(default_factory=LiveConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)
    textbook: TextbookConfig = field(default_factory=TextbookConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    check: CheckConfig = field(default_factory=CheckConfig)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """The settings in a TOML file: its `[tool.trimtab]` table if it has one, else all of it.

        A `[training]` table in it is the plan of the run; `trimtab check` reads that.
        """
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path} cannot be read as TOML: {error}") from error
        settings: object = document
        if "tool" in document:  # a pyproject.toml, in which other tables belong to other tools
            tools = document["tool"]
            settings = tools.get("trimtab") if isinstance(tools, dict) else None
        if not isinstance(settings, dict):
            raise ConfigError(f"{path} has no [tool.trimtab] table")
        return cls.from_dict(
            {name: value for name, value in settings.items() if name != "training"}
        )
