"""One of two ranks: `python -m trimtab.selftest.rank_worker RANK FOLDER DEVICE BACKEND`.

Gradients become NaN on one rank after they were reduced, as a bad device would make them. A rank
that decided for itself would apply the step on the other rank, and the replicas would part.
"""

import datetime
import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trimtab.selftest.bits import find_difference, state_of, weights_of
from trimtab.selftest.loop import Training, batches

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
                before = {**weights_of(run.model), **state_of(run)}
            if is_bad and rank == BAD_RANK:
                run.step(batch, guard, after_backward=spoil)
            else:
                run.step(batch, guard)
            if is_bad:
                after = {**weights_of(run.model), **state_of(run)}
    last = weights_of(run.model)
    data_bytes = b"".join(tensor.numpy().tobytes() for tensor in last.values())
    return {
        "is_kept_out": find_difference(before, after) is None,
        "is_finite": all(bool(torch.isfinite(tensor).all()) for tensor in last.values()),
        "has_trained": any(not torch.equal(last[name], before[name]) for name in last),
        "digest": hashlib.blake2b(data_bytes).hexdigest(),
    }


if __name__ == "__main__":
    main()
