"""How many snapshots a recovering run keeps, and how old they get."""

from dataclasses import dataclass

from trimtab.core.config.section import Section, require


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
