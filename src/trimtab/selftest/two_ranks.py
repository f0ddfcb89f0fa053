"""Two ranks decide the same, though only one of them has bad gradients.

Gradients become NaN on one rank after they were reduced, as a bad device would make them. A rank
that decided for itself would apply the step on the other rank, and the replicas would diverge. Each
rank is a process: `python -m trimtab.selftest.two_ranks RANK FOLDER DEVICE BACKEND`.
"""

import datetime
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trimtab.selftest.loop import (
    CheckFailed,
    Training,
    all_finite,
    batches,
    find_difference,
    trained_bits,
)

WORLD = 2
STEPS, BAD_STEP, BAD_RANK = 12, 8, 1


def main() -> None:
    """Train as one rank, and write what it found."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    device = torch.device(sys.argv[3], rank) if sys.argv[3] == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        sys.argv[4],
        init_method=f"file://{folder.absolute() / 'rendezvous'}",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=120),
    )
    found = _train(rank, device, folder / "run")
    dist.barrier()
    (folder / f"rank-{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def _train(rank: int, device: torch.device, folder: Path) -> dict[str, object]:
    run = Training(device=device)
    run.model = DistributedDataParallel(run.model)
    data = batches(STEPS * WORLD)[rank::WORLD]
    before: dict[str, torch.Tensor] = {}
    after: dict[str, torch.Tensor] = {}

    def spoil() -> None:
        for parameter in run.model.parameters():
            if parameter.grad is not None:
                parameter.grad.fill_(float("nan"))

    with run.watch(folder, "protect") as guard:
        for number, batch in enumerate(data):
            is_bad = number == BAD_STEP
            if is_bad:
                before = trained_bits(run)
            if is_bad and rank == BAD_RANK:
                run.step(batch, guard, after_backward=spoil)
            else:
                run.step(batch, guard)
            if is_bad:
                after = trained_bits(run)
    last = trained_bits(run)
    data_bytes = b"".join(tensor.numpy().tobytes() for tensor in last.values())
    return {
        "is_kept_out": find_difference(before, after) is None,
        "is_finite": all_finite(last),
        "has_trained": any(not torch.equal(last[name], before[name]) for name in last),
        "digest": hashlib.blake2b(data_bytes).hexdigest(),
    }


TIMEOUT_SECONDS = 180.0
"""Two processes that import torch take 10 s, and 60 s were seen on a machine with a load of 10."""


def check_two_ranks(device: torch.device, folder: Path) -> str:
    """Start two processes; after the bad step they must hold the same weights as before it."""
    has_gpus = device.type == "cuda" and torch.cuda.device_count() >= WORLD
    backend = "nccl" if has_gpus else "gloo"
    found = _run_workers(folder, "cuda" if has_gpus else "cpu", backend)
    for rank, facts in enumerate(found):
        if not facts["is_kept_out"]:
            raise CheckFailed(
                f"rank {rank} applied step {BAD_STEP}, whose gradients are NaN on rank {BAD_RANK}"
            )
        if not facts["is_finite"]:
            raise CheckFailed(f"the weights of rank {rank} are not finite")
        if not facts["has_trained"]:
            raise CheckFailed(f"rank {rank} applied no step after step {BAD_STEP}")
    if len({facts["digest"] for facts in found}) != 1:
        raise CheckFailed("the ranks do not hold the same weights at the end")
    where = "two GPUs" if has_gpus else "CPU tensors"
    return (
        f"{backend}, {where}, DDP: NaN gradients on rank {BAD_RANK} alone at step {BAD_STEP}, both "
        f"discard it and hold the same bits after {STEPS} steps"
    )


def _run_workers(folder: Path, kind: str, backend: str) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = []
    for rank in range(WORLD):
        with (folder / f"rank-{rank}.log").open("wb") as log:
            arguments = [str(rank), str(folder), kind, backend]
            workers.append(
                subprocess.Popen(  # noqa: S603 - this program itself
                    [sys.executable, "-m", "trimtab.selftest.two_ranks", *arguments],
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
            )
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        for worker in workers:
            worker.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise CheckFailed(f"the ranks did not end within {TIMEOUT_SECONDS:.0f} s") from None
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
    return [_read(folder, rank) for rank in range(WORLD)]


def _read(folder: Path, rank: int) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        text = (folder / f"rank-{rank}.log").read_text(encoding="utf-8", errors="replace")
        last = text.strip().splitlines()[-1:] or ["it printed nothing"]
        raise CheckFailed(f"rank {rank} failed: {last[0]}") from None


if __name__ == "__main__":
    main()
