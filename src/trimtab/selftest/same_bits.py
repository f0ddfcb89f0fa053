"""`observe` changes no bit of what is trained."""

from pathlib import Path

import torch

from trimtab.selftest.bits import bits_of, find_difference
from trimtab.selftest.loop import Training, batches
from trimtab.selftest.results import CannotCheck, CheckFailed

STEPS = 40
"""Four steps with telemetry among them."""


def check_same_bits(device: torch.device, folder: Path, autocast: torch.dtype | None) -> str:
    """Train with and without a guard; all bits must be the same."""
    _require_precision(device, autocast)
    plain = _train(device, autocast, None)
    difference = find_difference(plain, _train(device, autocast, None))
    if difference is not None:
        raise CannotCheck(f"two runs without a guard differ on this device: {difference}")
    watched = _train(device, autocast, folder)
    difference = find_difference(plain, watched)
    if difference is not None:
        raise CheckFailed(f"the run with a guard has different bits: {difference}")
    return f"{STEPS} steps, {len(plain)} tensors are equal in every bit"


def _train(
    device: torch.device, autocast: torch.dtype | None, folder: Path | None
) -> dict[str, torch.Tensor]:
    run = Training(device=device, autocast=autocast)
    if folder is None:
        for batch in batches(STEPS):
            run.step(batch)
    else:
        with run.watch(folder, "observe") as guard:
            for batch in batches(STEPS):
                run.step(batch, guard)
    return bits_of(run)


def _require_precision(device: torch.device, autocast: torch.dtype | None) -> None:
    if autocast is None:
        return
    if not torch.amp.is_autocast_available(device.type):
        raise CannotCheck(f"{device.type} has no autocast")
    if device.type == "cuda" and autocast is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise CannotCheck("this GPU has no bf16")
