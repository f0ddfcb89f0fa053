"""`recover` returns to the same bits: a run that went back ends like one that never left."""

from pathlib import Path

import torch

from trimtab.selftest.bits import bits_of, find_difference
from trimtab.selftest.loop import Training, batches
from trimtab.selftest.results import CannotCheck, CheckFailed

STEPS, LEAVES, RETURNS = 40, 34, 15
"""From before step 34 back to step 15, which no snapshot is of: some steps are done again."""


def check_rollback(device: torch.device, folder: Path) -> str:
    """Train straight, and with a rollback; all bits must be the same."""
    straight = _train(device, folder / "straight", goes_back=False)
    difference = find_difference(straight, _train(device, folder / "again", goes_back=False))
    if difference is not None:
        raise CannotCheck(f"two runs that never went back differ on this device: {difference}")
    returned = _train(device, folder / "returned", goes_back=True)
    difference = find_difference(straight, returned)
    if difference is not None:
        raise CheckFailed(f"the run that went back has different bits: {difference}")
    return (
        f"from step {LEAVES} back to {RETURNS} and on to {STEPS}: {len(straight)} tensors are "
        "equal in every bit"
    )


def _train(device: torch.device, folder: Path, *, goes_back: bool) -> dict[str, torch.Tensor]:
    run = Training(device=device)
    losses: dict[int, torch.Tensor] = {}
    num_asked = 0
    with run.watch(folder, "recover") as guard:
        for step in guard.steps(batches(2 * STEPS)):
            if step.number >= STEPS:
                break
            for batch in step:
                run.step(batch, guard)
            losses[step.number] = run.losses[-1]
            if goes_back and not num_asked and step.number + 1 == LEAVES:
                num_asked += 1
                guard.rollback(to=RETURNS)
        num_returned = guard.recovery.attempt if guard.recovery else 0
    if num_returned != num_asked:
        raise CheckFailed(f"the guard went back {num_returned} times, and was asked {num_asked}")
    run.losses = [losses[number] for number in sorted(losses)]
    return bits_of(run)
