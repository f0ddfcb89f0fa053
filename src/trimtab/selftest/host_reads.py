"""Nothing on the step path reads a device value on the host: a read would wait for the device."""

import warnings
from pathlib import Path
from typing import Any

import torch

from trimtab.selftest.loop import Training, batches
from trimtab.selftest.operations import READS, Counting
from trimtab.selftest.results import CheckFailed

WARM, STEPS = 10, 20
"""Steps before counting begins, and steps that are counted, two of them with telemetry."""

_SYNC = "called a synchronizing CUDA operation"
"""What torch warns of in its debug mode. Source: c10/cuda/CUDAFunctions.cpp."""


def check_host_reads(device: torch.device, folder: Path, mode: str) -> str:
    """Count the reads of steps with a guard; there must be none more than without."""
    plain_reads, plain_syncs = _count(device, None, mode)
    reads, syncs = _count(device, folder, mode)
    if reads > plain_reads:
        raise CheckFailed(f"{reads - plain_reads} reads in {STEPS} steps are the guard's")
    if syncs > plain_syncs:
        raise CheckFailed(f"{syncs - plain_syncs} waits for the GPU in {STEPS} steps are its own")
    if device.type == "cuda":
        return f"{STEPS} steps, 0 reads among the operations, 0 waits in torch's sync debug mode"
    return f"{STEPS} steps, 0 reads among the operations"


def _count(device: torch.device, folder: Path | None, mode: str) -> tuple[int, int]:
    """The host reads of some steps, and how often they waited for the GPU."""
    run = Training(device=device)
    data = [batch.to(device) for batch in batches(WARM + 2 * STEPS)]
    if folder is None:
        return _count_steps(run, data, None)
    with run.watch(folder, mode) as guard:
        return _count_steps(run, data, guard)


def _count_steps(run: Training, data: list[torch.Tensor], guard: Any) -> tuple[int, int]:
    for batch in data[:WARM]:  # state and buffers exist after them
        run.step(batch, guard)
    counting = Counting()
    with counting:
        for batch in data[WARM : WARM + STEPS]:
            run.step(batch, guard)
    reads = sum(counting.counts[name] for name in READS)
    if run.device.type != "cuda":
        return reads, 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for batch in data[WARM + STEPS :]:
                run.step(batch, guard)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return reads, sum(_SYNC in str(warning.message) for warning in caught)
