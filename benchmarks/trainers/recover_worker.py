"""Runs jobs in this process: `torchrun -m benchmarks.trainers.recover_worker JOBS.json`.

Every job writes its result beside its run, one file per rank.
"""

import json
import logging
import os
import sys
from pathlib import Path

import torch
from tests.kit.trainer_jobs.job import Job
from tests.kit.trainer_jobs.runs import RUNS


def main() -> None:
    """Run them one after the other."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    os.environ["ACCELERATE_USE_CPU"] = "true"
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    for given in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        trainer, folder = given.pop("trainer"), Path(given.pop("folder"))
        result = folder / f"result.{rank}"
        if not result.exists():
            job = Job(folder=folder, rank=rank, ranks=ranks, **given)
            bits, loss = RUNS[trainer](job)
            result.write_text(json.dumps({"bits": bits, "loss": loss}), encoding="utf-8")


if __name__ == "__main__":
    main()
