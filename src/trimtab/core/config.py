"""Settings: frozen dataclasses with a doc under each field, from TOML or a dict, to JSON.

Every setting has a default; a name that is not a setting is an error.
"""

import tomllib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from trimtab.core.errors import ConfigError
from trimtab.core.ladder_config import LadderConfig
from trimtab.core.probes_config import ProbesConfig
from trimtab.core.settings import Section, require
from trimtab.core.ship_config import ShipConfig


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
    RECOVER = "recover"
    """Protect, and keep snapshots of the run so that it can return to an earlier step."""

    @property
    def is_protected(self) -> bool:
        """Whether bad steps are discarded."""
        return self is not Mode.OBSERVE


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

    batch_memory_steps: int = 1024
    """Steps whose token ids are kept on the host, so that an incident can name sequences and
    tokens; 0 keeps none. Records are judged once a second, or when 512 of them wait."""

    batch_memory_mb: float = 64.0
    """The most that these token ids may take, at 4 bytes each. Batches of open incidents may take
    as much again."""

    max_nonfinite_steps: int = 100
    """Steps in a row that are not finite before a protected run is stopped, and before an observed
    one logs a warning. Source: a GradScaler that starts at 2^16 needs at most 40 to find its
    scale."""

    rank_timeout_seconds: float = 1800.0
    """How long a rank waits for the others, at the start and in a step. Source: the default of
    torch's gloo groups; a checkpoint of one rank may take many minutes."""

    hang_seconds: float = 0.0
    """Seconds without a record or an update after which the stacks of all threads are written and
    a run in `recover` ends with 75; 0 turns it off. Choose more than your longest evaluation, save
    or compilation takes. Less than `rank_timeout_seconds`, or the ranks give up first."""

    def __post_init__(self) -> None:
        require(self.max_nonfinite_steps >= 1, "max_nonfinite_steps must be at least 1")
        require(self.batch_memory_steps >= 0, "batch_memory_steps must not be negative")
        require(self.batch_memory_mb > 0, "batch_memory_mb must be positive")
        require(self.rank_timeout_seconds > 0, "rank_timeout_seconds must be positive")
        require(self.hang_seconds >= 0, "hang_seconds must not be negative")
        require(0 <= self.lag_steps <= 100, "lag_steps must be in 0..100")
        require(self.telemetry_every >= 1, "telemetry_every must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig(Section):
    """When a step of a protected run is discarded or scaled down.

    A sigma is a median absolute deviation scaled to a normal distribution, over the steps of the
    window; those of the norm are sigmas of its logarithm. Figures of the healthy kinds, the spike
    and the lab are in benchmarks/RESULTS.md, "The gate on ..." and "Protection in the lab".
    """

    window: int = 128
    """Steps that medians are computed from. Source: 78 public runs, where 64 to 192 were equal."""

    min_history: int = 96
    """Known steps before a finite step can be discarded: three quarters of the window. The norm of
    a run that has just begun moves a lot: with 64, two of 24,000 healthy steps of the lab were
    discarded, both at about step 75."""

    min_history_extreme: int = 32
    """Known steps before a norm over `extreme_norm_ratio` is scaled down. Source: of the tuning
    half of the healthy kinds none has such a norm in its first 96 steps."""

    norm_ratio: float = 5.0
    """A gradient norm at least this many times its median can be scaled down. Source: in public
    runs one step in 15,000 passes this, `norm_sigmas` and `norm_explained_by_loss`."""

    norm_sigmas: float = 14.0
    """And at least this many sigmas above it, so that a run with a noisy norm is left alone.
    Source: batches of a single row of 32 tokens reach 12.9 and are only noise."""

    norm_explained_by_loss: float = 1.5
    """A loss above its median by the share x explains a norm of exp(1.5 x) times its median; a step
    is only touched if its norm is larger. Source: bad batches of the lab reach 1.7 or more in 19 of
    20 runs; an inverted head 0.4, one step with 333 times the learning rate 1.3; of 95 steps of the
    tuning half of the healthy kinds with loss and norm that high, none reaches 1.5."""

    extreme_norm_ratio: float = 100.0
    """A norm at least this many times its median is scaled down whatever the loss. Source: of the
    tuning half of the healthy kinds only one, two tasks of different scale, has such steps."""

    loss_sigmas: float = 6.0
    """A step is odd if loss and norm are both at least this many sigmas above their medians.
    Source: never both in 38,000 healthy steps of two public GPT-2 runs."""

    loss_excess: float = 0.1
    """And the loss at least this share above its median. Source: bumps of up to 8 % come from the
    order of the data alone, in several runs at the same step."""

    odd_norm_ratio: float = 2.0
    """And the norm at least this many times its median. An odd step is discarded if its norm also
    passes `norm_ratio`, `norm_sigmas` and `norm_explained_by_loss`; else it is only counted."""

    max_consecutive_discards: int = 5
    """Odd steps in a row before everything finite is let through: the weights are damaged or the
    level has moved, and only training helps. Source: bad shards of the lab last 1 to 5 batches."""

    max_discards: float = 5.0
    """Finite steps discarded before the rest of their kind is let through. Source: the longest bad
    shard of the lab is 5 batches; with 3 discards 17 of 20 of those runs were within 0.02 of the
    clean one, with 5 it was 19."""

    discard_memory_steps: int = 20_000
    """How slowly discards are forgotten: each counts less by one part in this many with every step.
    With `max_discards` that is one discard in 4,500 steps in the long run. Source: a budget of
    0.02 % of steps, so that only what is rarer than that can be withheld again and again."""

    max_scaled: float = 16.0
    """Steps scaled down before the rest of their kind is let through. Source: BLOOM's first spike
    has 7 such steps, and a second one may follow it."""

    max_extreme_scaled: float = 4.0
    """The same for steps scaled down by `extreme_norm_ratio` alone. Source: with 8, a head
    multiplied by 100 cost 7 of 51 nat in the next 40 steps."""

    scale_memory_steps: int = 4_000
    """How slowly scaled steps are forgotten; one in 260 steps in the long run. Source: a budget
    of 0.4 % of steps, larger than that of discards because a scaled step is still learnt from."""

    promote: bool = True
    """Whether Adam, AdamW, SGD and Adagrad are made fused, the form that needs no host read."""

    def __post_init__(self) -> None:
        require(2 <= self.min_history <= self.window, "min_history must be in 2..window")
        require(
            2 <= self.min_history_extreme <= self.min_history,
            "min_history_extreme must be in 2..min_history",
        )
        for name in ("norm_sigmas", "norm_explained_by_loss", "loss_sigmas", "loss_excess"):
            require(getattr(self, name) > 0, f"{name} must be positive")
        for name in ("norm_ratio", "extreme_norm_ratio", "odd_norm_ratio"):
            require(getattr(self, name) > 1, f"{name} must be over 1")
        counts = ("max_consecutive_discards", "max_discards", "max_scaled", "max_extreme_scaled")
        for name in (*counts, "discard_memory_steps", "scale_memory_steps"):
            require(getattr(self, name) >= 1, f"{name} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverConfig(Section):
    """Which snapshots of a run are kept in host memory, so that it can return to them."""

    snapshot_every: int = 10
    """Steps from one snapshot to the next. Source: at 50M parameters a snapshot every 10 steps
    costs 0.2 % of the time, and a fault that is dated to the step loses at most 10 more."""

    oldest_steps: int = 320
    """The age that the oldest snapshot reaches at least; the ages between grow by about a factor
    of 2. Source: in the lab the slowest fault was dated 45 steps late, and each recurrence doubles
    the depth of a rollback."""

    memory_share: float = 0.25
    """The share of the free host memory that the snapshots and batches of all ranks of a machine
    may take. If they do not fit there are fewer snapshots, at least 2, else none."""

    def __post_init__(self) -> None:
        require(self.snapshot_every >= 1, "snapshot_every must be at least 1")
        require(
            self.oldest_steps >= self.snapshot_every, "oldest_steps must be at least snapshot_every"
        )
        require(0 < self.memory_share <= 1, "memory_share must be in (0, 1]")


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
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
    probes: ProbesConfig = field(default_factory=ProbesConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)
    textbook: TextbookConfig = field(default_factory=TextbookConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    ship: ShipConfig = field(default_factory=ShipConfig)
    check: CheckConfig = field(default_factory=CheckConfig)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """The settings in a TOML file: its `[tool.trimtab]` table if it has one, else all of it.

        A `[training]` table in it is the plan of the run; `trimtab check` reads that.
        """
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read as TOML: {error}; give a file with lines such as "
                "`detect.threshold_scale = 1.5`"
            ) from error
        settings: object = document
        if "tool" in document:  # a pyproject.toml, in which other tables belong to other tools
            tools = document["tool"]
            settings = tools.get("trimtab") if isinstance(tools, dict) else None
        if not isinstance(settings, dict):
            raise ConfigError(f"{path} has no [tool.trimtab] table")
        return cls.from_dict(
            {name: value for name, value in settings.items() if name != "training"}
        )
