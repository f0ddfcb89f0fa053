"""StepNote: one step as the host knows it while its numbers are still on the device."""

from dataclasses import dataclass, field
from enum import StrEnum

from trimtab.core.block import NO_POSITION
from trimtab.explain.batches.rows import TokenRows
from trimtab.live.host.in_flight import HostCopy


class StepState(StrEnum):
    """Where a step stands; one step for each update that the user meant.

        OPEN --record--> RECORDED --pre-hook--> LOOKED_AT --post-hook--> APPLIED
                             |                      |
                             |                      +-- exception in the update --> BROKEN_OFF
                             +-- guard.skip(), or the next step begins --> SKIPPED
                             +-- GradScaler passed over it --> OVERFLOW

    Whether an update that was looked at was discarded is decided on the device: the host learns of
    it with the step's numbers.
    """

    OPEN = "open"
    RECORDED = "recorded"
    LOOKED_AT = "looked at"
    APPLIED = "applied"
    SKIPPED = "skipped by the user"
    OVERFLOW = "overflow"
    BROKEN_OFF = "broken off"


@dataclass(slots=True, kw_only=True)
class StepNote:
    """What the host knows of a step."""

    step: int
    clock: float = 0.0
    signals: dict[str, float] = field(default_factory=dict)
    data_position: int = NO_POSITION
    norm_is_after_clip: bool = False
    """Whether the norm was taken in the optimizer's hook, where clipping may lie before it."""
    state: StepState = StepState.OPEN
    is_recorded_here: bool = False
    """Whether this rank has recorded a loss for it."""
    num_meetings: int = 0
    """How often ranks have met for it: once for each optimizer that moved."""
    has_telemetry: bool = False
    """Whether telemetry of the step follows, with the numbers of the next update."""
    is_closed: bool = False
    """Whether everything that the host knows is in here."""
    device_names: tuple[str, ...] = ()
    """The user's signals that are on their way from the device."""
    device_values: HostCopy | None = None
    token_rows: tuple[TokenRows, ...] = ()
    """The token ids of each micro-batch."""
    row_losses: tuple[HostCopy, ...] = ()
    """The losses of each micro-batch's sequences, on their way from the device."""

    def user_signals(self) -> dict[str, float]:
        """The user's signals that came from the device."""
        if self.device_values is None:
            return {}
        return dict(zip(self.device_names, self.device_values.read(), strict=True))
