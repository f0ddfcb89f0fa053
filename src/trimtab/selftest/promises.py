"""The checks in one process: each trains the small model and says what it compared, or raises.

`observe` changes no bit, in fp32, bf16 and fp16. Nothing on the step path reads a device value on
the host, which would wait for the device. `protect` keeps a step with a NaN out of weights and
optimizer state. `recover` restores every bit of weights and optimizer.
"""

import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.live.arithmetic import device_path
from trimtab.selftest.loop import (
    CannotCheck,
    CheckFailed,
    Training,
    all_bits,
    all_finite,
    batches,
    find_difference,
    trained_bits,
)

READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal"}
"""Operations that read a value of the device on the host."""


class Counting(TorchDispatchMode):
    """Counts the operations that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.launches = 0
        """Operations that run a kernel."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func._schema.name] += 1
        self.launches += is_launch(func)
        return func(*args, **(kwargs or {}))


def is_launch(func: Any) -> bool:
    """Return whether an operation runs a kernel: a view or an allocation does not."""
    name = func._schema.name
    return not (func.is_view or "empty" in name or name in _WITHOUT_KERNEL)


_WITHOUT_KERNEL = {"prim::device", "aten::_unsafe_view", "aten::lift_fresh", "aten::_reshape_alias"}

SAME_BITS_STEPS = 40
"""Four steps with telemetry among them."""


def check_same_bits(device: torch.device, folder: Path, autocast: torch.dtype | None) -> str:
    """Train with and without a guard; all bits must be the same."""
    _require_precision(device, autocast)
    plain = _train_plainly(device, autocast, None)
    # Kernels that are not deterministic would be blamed on the guard.
    difference = find_difference(plain, _train_plainly(device, autocast, None))
    if difference is not None:
        raise CannotCheck(f"two runs without a guard differ on this device: {difference}")
    watched = _train_plainly(device, autocast, folder)
    difference = find_difference(plain, watched)
    if difference is not None:
        raise CheckFailed(f"the run with a guard has different bits: {difference}")
    return f"{SAME_BITS_STEPS} steps, {len(plain)} tensors are equal in every bit"


def _train_plainly(
    device: torch.device, autocast: torch.dtype | None, folder: Path | None
) -> dict[str, torch.Tensor]:
    run = Training(device=device, autocast=autocast)
    with nullcontext() if folder is None else run.watch(folder, "observe") as guard:
        for batch in batches(SAME_BITS_STEPS):
            run.step(batch, guard)
    return all_bits(run)


def _require_precision(device: torch.device, autocast: torch.dtype | None) -> None:
    if autocast is None:
        return
    if not torch.amp.is_autocast_available(device.type):
        raise CannotCheck(f"{device.type} has no autocast")
    if device.type == "cuda" and autocast is torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise CannotCheck("this GPU has no bf16")


WARM, COUNTED_STEPS = 10, 20
"""Steps before counting begins, and steps that are counted, two of them with telemetry."""

_SYNC = "called a synchronizing CUDA operation"
"""What torch warns of in its debug mode. Source: c10/cuda/CUDAFunctions.cpp."""


PAPER_LAUNCHES = {"observe": 35.3, "protect": 89.2, "recover": 271.1}
"""What a guard adds to a step on a GPU by the count of `scripts/bench device_work`."""


def check_host_reads(device: torch.device, folder: Path, mode: str) -> str:
    """Count the reads of steps with a guard; there must be none more than without."""
    counts = count_above_bare(device, folder, mode)
    for what in ("reads", "waits for the GPU"):
        if counts[what] > 0:
            raise CheckFailed(f"{counts[what]} {what} in {COUNTED_STEPS} steps are the guard's")
    shown = ", 0 waits in torch's sync debug mode" if device.type == "cuda" else ""
    return (
        f"{COUNTED_STEPS} steps, 0 reads among the operations{shown}; "
        f"{counts['launches'] / COUNTED_STEPS:.1f} launches a step, on paper "
        f"{PAPER_LAUNCHES[mode]} on a GPU"
    )


def count_above_bare(device: torch.device, folder: Path, mode: str) -> Counter[str]:
    """Return the reads, waits and launches that a guard adds to COUNTED_STEPS steps."""
    counts = _count(device, folder, mode)
    counts.subtract(_count(device, None, mode))
    return counts


def _count(device: torch.device, folder: Path | None, mode: str) -> Counter[str]:
    run = Training(device=device)
    data = [batch.to(device) for batch in batches(WARM + 2 * COUNTED_STEPS)]
    counting, waits = Counting(), 0
    settings = {"live.telemetry_every": 10}
    with device_path(), run.watch(folder, mode, **settings) if folder else nullcontext() as guard:
        for batch in data[:WARM]:  # state and buffers exist after them
            run.step(batch, guard)
        with counting:
            for batch in data[WARM : WARM + COUNTED_STEPS]:
                run.step(batch, guard)
        if device.type == "cuda":
            waits = _count_waits(run, data[WARM + COUNTED_STEPS :], guard)
    reads = sum(counting.counts[name] for name in READS)
    return Counter({"reads": reads, "waits for the GPU": waits, "launches": counting.launches})


def _count_waits(run: Training, data: list[torch.Tensor], guard: Any) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for batch in data:
                run.step(batch, guard)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(_SYNC in str(warning.message) for warning in caught)


GATE_STEPS, BAD_STEP = 16, 10


def check_gate(device: torch.device, folder: Path) -> str:
    """Spoil the loss of one step; it must leave no trace, and the step after it must train."""
    unguarded = Training(device=device)
    for number, batch in enumerate(batches(GATE_STEPS)):
        unguarded.step(batch, spoil_loss=number == BAD_STEP)
    if all_finite(trained_bits(unguarded)):
        raise CheckFailed("a NaN in the loss did no harm without a guard: the check is blind")
    run = Training(device=device)
    before: dict[str, torch.Tensor] = {}
    with run.watch(folder, "protect") as guard:
        for number, batch in enumerate(batches(GATE_STEPS)):
            run.step(batch, guard, spoil_loss=number == BAD_STEP)
            if number == BAD_STEP - 1:
                before = trained_bits(run)
            elif number == BAD_STEP:
                after = trained_bits(run)
                difference = find_difference(before, after)
                if difference is not None:
                    raise CheckFailed(f"a step with a NaN was applied: {difference}")
    last = trained_bits(run)
    if not all_finite(last):
        raise CheckFailed("weights or optimizer state are not finite at the end")
    if find_difference(before, last) is None:
        raise CheckFailed("no step after the one with a NaN was applied")
    return f"the NaN of step {BAD_STEP} changed none of {len(before)} tensors; later steps trained"


UNDO_STEPS, ASKED = 40, 33
"""Snapshots are taken every 10 updates, so the state is that of update 30 or 20 again."""


def check_undo(device: torch.device, folder: Path) -> str:
    """Train, undo, and look for the state among those of the steps before."""
    run = Training(device=device)
    states: list[dict[str, torch.Tensor]] = []
    found: int | None = None
    with run.watch(folder, "recover") as guard:
        for step in guard.steps(batches(UNDO_STEPS)):
            for batch in step:
                run.step(batch, guard)
            state = {name: tensor.clone() for name, tensor in trained_bits(run).items()}
            if step.number > ASKED and found is None:
                same = (at for at, old in enumerate(states) if find_difference(old, state) is None)
                found = next(same, None)
            states.append(state)
            if step.number == ASKED:
                guard.undo()
    if found is None:
        raise CheckFailed("no state after guard.undo() has the bits of an earlier one")
    return f"the state of step {found} is back in every bit, {len(states[0])} tensors"
