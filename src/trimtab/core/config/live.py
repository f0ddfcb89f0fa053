"""How a run is watched and its journal written."""

from dataclasses import dataclass
from enum import StrEnum

from trimtab.core.config.section import Section, require


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
