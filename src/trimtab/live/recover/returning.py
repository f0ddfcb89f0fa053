"""Return to a snapshot: the same for a rollback and for an experiment."""

from collections.abc import Iterable

from torch.distributed.fsdp import FSDPModule

from trimtab.core.errors import RestoreError
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.state.snapshot import Snapshot
from trimtab.state.tape import BatchTape
from trimtab.state.training_state import TrainingState


def half_way(slot: Snapshot, error: Exception) -> RestoreError:
    """What is raised when a return fails: the run must not go on."""
    return RestoreError(
        f"the return to step {slot.step} failed half-way ({type(error).__name__}: {error}), so "
        "weights and optimizer may be of different steps: restart from the last checkpoint"
    )


def return_to(
    slot: Snapshot,
    state: TrainingState,
    monitor: StepMonitor,
    tape: BatchTape,
    *,
    position: int,
    num_updates: int,
    skip: Iterable[int] = (),
) -> None:
    """Put the run back to a snapshot; its random state is the caller's last act."""
    slot.put(state)
    for module in state.model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    tape.rewind(position, skip)
    monitor.return_to(slot.step, num_updates)
    if monitor.gate is not None:
        monitor.gate.buffers.renew()
