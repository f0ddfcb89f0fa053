"""Config: all settings of trimtab, from TOML or a dict, to JSON.

A setting is here if a user has a reason to change it: a mode, a cadence, a budget, a target. Each
has a default and its source. Thresholds that were measured are constants beside the code that uses
them; what was a setting once is in `REMOVED` of its section, with the reason.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Self

from trimtab.core.config.section import Section, require
from trimtab.core.errors import ConfigError


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

    ranks: tuple[int, ...] = ()
    """The global ranks that train the model, if not all do and it is not in a DDP of theirs."""

    replicas: int = 0
    """How many ranks hold the same part of parameters that differ between ranks (experts), if that
    is too much to compare; 0 compares them."""

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
        require(self.replicas >= 0, "replicas must not be negative")
        require(self.rank_timeout_seconds > 0, "rank_timeout_seconds must be positive")
        require(self.hang_seconds >= 0, "hang_seconds must not be negative")
        require(0 <= self.lag_steps <= 100, "lag_steps must be in 0..100")
        require(self.telemetry_every >= 1, "telemetry_every must be at least 1")

    REMOVED: ClassVar[Mapping[str, str]] = {
        "batch_memory_mb": "token ids take 64 MB at most; batch_memory_steps says how many are kept"
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig(Section):
    """How a step of a protected run is discarded; when it is, is in `live/protect/rule.py`."""

    promote: bool = True
    """Whether Adam, AdamW, SGD and Adagrad are made fused, the form that needs no host read."""

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            *("window", "min_history", "min_history_extreme", "norm_ratio", "norm_sigmas"),
            *("norm_explained_by_loss", "extreme_norm_ratio", "loss_sigmas", "loss_excess"),
            *("odd_norm_ratio", "max_consecutive_discards", "max_discards"),
            *("discard_memory_steps", "max_scaled", "max_extreme_scaled", "scale_memory_steps"),
        ),
        "the gate's thresholds are measured constants, in trimtab/live/protect/rule.py",
    )


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
class LadderConfig(Section):
    """What a recovering run may do, and how long it waits before it does."""

    enabled: bool = True
    """Whether the run decides by itself; if not, it goes back only by `guard.rollback`."""

    approve: str = "auto"
    """"auto" acts at once. "ask" writes the proposed action into the run directory and waits for
    `trimtab answer`, while training continues."""

    approve_seconds: float = 900.0
    """How long a proposal waits for an answer; without one the run continues and does not act."""

    max_rollbacks: int = 4
    """Rollbacks within 1,000 steps. Source: OPT-175B restarted about 90 times in 140,000 steps;
    more than a few in 1,000 steps means that rolling back does not help."""

    max_skipped_batches: int = 500
    """Batches skipped within 1,000 steps. Source: PaLM skipped 200 to 500 at each spike."""

    max_lr_reductions: int = 2
    """How often the learning rate is lowered in one run. Source: textbook, "LR down 2 to 3x when
    spikes recur"; in the lab it costs more than it gains."""

    max_relaunches: int = 0
    """How often a supervisor of yours starts the run again after exit code 75. With 0 only
    `trimtab run` does; without that the run is not ended where only a relaunch would help."""

    def __post_init__(self) -> None:
        for name in ("max_rollbacks", "max_skipped_batches", "max_lr_reductions", "max_relaunches"):
            require(getattr(self, name) >= 0, f"{name} must not be negative")
        require(self.approve in ("auto", "ask"), f"approve is {self.approve!r}; use auto or ask")
        require(self.approve_seconds > 0, "approve_seconds must be positive")

    REMOVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            *("window_steps", "probe_after_steps", "second_probe_after_steps", "check_steps"),
            "canary_share",
        ),
        "the waiting times of recovery are measured constants, in trimtab/decide/ladder/decide.py",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbesConfig(Section):
    """Experiments that a recovering run makes on an incident by itself (docs/probes.md)."""

    enabled: bool = False
    """Whether the run makes them by itself; `guard.probe` works either way. Off by default,
    because what recovery costs and saves was measured without them."""

    max_steps: int = 120
    """Steps that are done again for one experiment, at most. Source: two replays from a snapshot
    that is 20 to 40 steps old, and a bisection over 64 sequences."""

    max_seconds: float = 120.0
    """Seconds after which an experiment is given up, at the end of a step."""

    def __post_init__(self) -> None:
        require(self.max_steps >= 1, "max_steps must be at least 1")
        require(self.max_seconds > 0, "max_seconds must be positive")

    REMOVED: ClassVar[Mapping[str, str]] = {
        "max_steps_per_incident": "it is 240, half of what a restart by hand costs"
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipConfig(Section):
    """Sending a run to trackers and alerts, from a process of its own (docs/integrations)."""

    to: tuple[str, ...] = ()
    """The sinks that the first rank starts a shipper for, such as "mlflow" and "alerts". Addresses
    and credentials come from the environment, never from here."""

    every: int = 10
    """Ticks from one value of a signal to the next. Loss, gradient norm, learning rate,
    throughput, evaluations, discards and non-finite values are always sent. Source: the slow
    telemetry is measured every 10 steps."""

    stall_seconds: float = 600.0
    """Seconds without a record, and for ten steps, before a run is stalled. Source: evaluations and
    checkpoints of large runs take minutes; 600 is what the Prometheus rule of trimtab uses too."""

    drain_seconds: float = 120.0
    """How long a shipper that the run started tries to send the rest after the run is over. What
    remains is sent by `trimtab ship RUN`. Source: batch systems give a job 30 s to a few minutes
    to end."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "every must be at least 1")
        require(self.stall_seconds > 0, "stall_seconds must be positive")
        require(self.drain_seconds >= 0, "drain_seconds must not be negative")


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
    ship: ShipConfig = field(default_factory=ShipConfig)
    check: CheckConfig = field(default_factory=CheckConfig)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read the settings of a TOML file: its `[tool.trimtab]` table if it has one, else all.

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

    REMOVED: ClassVar[Mapping[str, str]] = {
        "textbook": "the textbook's thresholds are what the textbook says, so they are constants",
        "journal": "how a journal is written is tuned by measurement; the constants are in "
        "trimtab/journal/writer.py",
    }
