"""`protect` keeps a step with a NaN out of the weights and the optimizer state."""

from pathlib import Path

import torch

from trimtab.selftest.bits import find_difference, state_of, weights_of
from trimtab.selftest.loop import Training, batches
from trimtab.selftest.results import CheckFailed

STEPS, BAD_STEP = 16, 10


def check_gate(device: torch.device, folder: Path) -> str:
    """Spoil the loss of one step; it must leave no trace, and the step after it must train."""
    unguarded = Training(device=device)
    for number, batch in enumerate(batches(STEPS)):
        unguarded.step(batch, spoil_loss=number == BAD_STEP)
    if _is_finite(weights_of(unguarded.model)):
        raise CheckFailed("a NaN in the loss did no harm without a guard: the check is blind")
    run = Training(device=device)
    before: dict[str, torch.Tensor] = {}
    with run.watch(folder, "protect") as guard:
        for number, batch in enumerate(batches(STEPS)):
            run.step(batch, guard, spoil_loss=number == BAD_STEP)
            if number == BAD_STEP - 1:
                before = {**weights_of(run.model), **state_of(run)}
            elif number == BAD_STEP:
                after = {**weights_of(run.model), **state_of(run)}
                difference = find_difference(before, after)
                if difference is not None:
                    raise CheckFailed(f"a step with a NaN was applied: {difference}")
    last = {**weights_of(run.model), **state_of(run)}
    if not _is_finite(last):
        raise CheckFailed("weights or optimizer state are not finite at the end")
    if find_difference(before, last) is None:
        raise CheckFailed("no step after the one with a NaN was applied")
    return f"the NaN of step {BAD_STEP} changed none of {len(before)} tensors; later steps trained"


def _is_finite(tensors: dict[str, torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
