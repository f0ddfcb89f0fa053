"""A run that spikes and then ends in one of many ways: `python -m tests.kit.ended_run RUN HOW`.

How: close, raise, kill, segv, _exit, hang, group (the process group with all children), oom (as the
kernel kills: by SIGKILL, while memory is being taken).
"""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import trimtab
from trimtab.core.config import Config

STEPS, SPIKE = 260, 150


def train(run_dir: str, how: str, config: Config | None = None) -> Any:
    """Train a small regression whose loss is wrong from SPIKE on, for six steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trimtab.watch(model, optimizer, run_dir=run_dir, config=config) as guard:
        for step in range(STEPS):
            batch = torch.randn(32, 8)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            guard.record(loss=loss * (30.0 if SPIKE <= step < SPIKE + 6 else 1.0))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if how != "close":
            time.sleep(0.3)  # the journal is handed to the system every 0.1 s
            end(how)
    return model


def end(how: str) -> None:
    """End this process."""
    match how:
        case "raise":
            raise RuntimeError("planted")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            ctypes.string_at(0)
        case "_exit":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "group":
            # Slurm and cgroups end everything that belongs to a job, sessions of their own too.
            for child in children(os.getpid()):
                os.kill(child, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        case "oom":
            taken = [bytearray(2**20) for _ in range(64)]
            os.kill(os.getpid(), signal.SIGKILL)
            del taken


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


@contextmanager
def started(run_dir: Path, how: str) -> Iterator[Any]:
    """Yield a process that trains and ends; leaving waits for it.

    It is forked: a new one would import torch.
    """
    process = multiprocessing.get_context("fork").Process(target=run, args=(str(run_dir), how))
    process.start()
    try:
        yield process
    finally:
        process.join()


def run(run_dir: str, how: str) -> None:
    torch.set_num_threads(1)  # a parent that ran backward left a thread pool
    faulthandler.disable()
    # A busy machine makes any run stall for a second: only where nothing else tells the end.
    seconds = 1.0 if how in ("hang", "group") else 60.0
    train(run_dir, how, Config.from_dict({"ship": {"stall_seconds": seconds}}))


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2])
