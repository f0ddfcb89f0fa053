"""RunView: what may be asked about a run at a boundary between two steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from trimtab.decide.suspects import RATE, SettingsView, plain_options
from trimtab.live.recover.holds import Holds
from trimtab.state.ring import SnapshotRing
from trimtab.state.snapshot import Snapshot
from trimtab.state.tape import BatchTape
from trimtab.state.training_state import TrainingState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """The run as the next step is about to begin."""

    step: int
    """The next step."""
    accumulate: int
    """Batches of a step."""
    next_position: int
    """Data position of the next batch."""
    slots: tuple[int, ...]
    """The steps of the snapshots, oldest first."""
    settings: Callable[[], SettingsView]
    """The present settings."""
    settings_at: Callable[[], Sequence[SettingsView]]
    """The settings of each snapshot."""
    rate_ratio: Callable[[], float | None]
    """The planned learning rate divided by the one that is held; None if none is held."""
    world: int
    """How many ranks there are."""
    source_at: Callable[[int], str | None]
    """The data source of the batch at a position, where batches name theirs."""
    can_probe: bool


def view_of(
    state: TrainingState,
    holds: Holds,
    ring: SnapshotRing,
    tape: BatchTape,
    *,
    step: int,
    accumulate: int,
    world: int,
    can_probe: bool,
) -> RunView:
    """The run as it is now."""
    return RunView(
        step=step,
        accumulate=accumulate,
        next_position=tape.position,
        slots=tuple(slot.step for slot in ring.kept),
        settings=partial(settings_now, holds, state, step),
        settings_at=lambda: [settings_of(slot) for slot in ring.kept],
        rate_ratio=partial(rate_ratio, holds, state),
        world=world,
        source_at=tape.source_at,
        can_probe=can_probe,
    )


def settings_now(holds: Holds, state: TrainingState, step: int) -> SettingsView:
    """The settings with which updates are made: what is held counts."""
    with holds.effective(state.optimizers):
        options = plain_options(state.group_options())
    return SettingsView(step=step, options=options, requires_grad=state.requires_grad())


def rate_ratio(holds: Holds, state: TrainingState) -> float | None:
    """The planned learning rate divided by the one that is held, the largest of all groups."""
    if RATE not in holds.names:
        return None
    planned = _rates(state)
    with holds.effective(state.optimizers):
        held = _rates(state)
    return max((p / h for p, h in zip(planned, held, strict=True) if h > 0), default=None)


def _rates(state: TrainingState) -> list[float]:
    options = plain_options(state.group_options())
    return [float(group[RATE]) for groups in options for group in groups if RATE in group]


def settings_of(slot: Snapshot) -> SettingsView:
    """The settings of a snapshot."""
    return SettingsView(
        step=slot.step, options=plain_options(slot.options()), requires_grad=slot.requires_grad
    )
