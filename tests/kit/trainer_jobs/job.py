"""One run that has to recover: what goes wrong in it, and what it leaves."""

import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.kit.tiny import journal_of
from tests.kit.trainer_jobs.chains import batches

STEPS, SAVE_EVERY, BATCH = 200, 20, 16
ONSET, STRETCH, NOTICED, KILLED_AT = 105, 6, 113, 150
"""Steps counted from 1: the fault, its length if it is in the data, when it is seen, and the end of
the first launch."""
BAD = range(ONSET - 1, ONSET - 1 + STRETCH)
"""Data positions of the stretch, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run on one rank; if it is killed, it is launched twice."""

    folder: Path
    seed: int
    fault: str = ""
    """"flip": one weight becomes 1e30. "skip": six batches are NaN, and are left out later."""
    is_killed: bool = False
    """Whether one rank is killed by SIGKILL, in the first launch."""
    rank: int = 0
    ranks: int = 1

    @property
    def is_first_launch(self) -> bool:
        """Whether no rank was killed yet."""
        return not self.mark_of_kill.exists()

    @property
    def mark_of_kill(self) -> Path:
        """A file that is there after the kill."""
        return self.folder / "killed"

    def data(self, marker: int) -> list[torch.Tensor]:
        """The batches of this rank."""
        marked = tuple(BAD) if self.fault == "skip" else ()
        count = STEPS + 40
        return batches(1000 * self.seed + self.rank, count, BATCH, marker, marked)


class Disturb:
    """Does to a run what its job says."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._to_do = {job.fault} if job.is_first_launch else set()

    def after_step(self, number: int, head: torch.Tensor, guard: Any, first: int) -> None:
        """After the step of this number, counted from 1; the guard counts from `first`."""
        job = self._job
        if "flip" in self._to_do and number == ONSET:
            self._to_do.clear()
            with torch.no_grad():
                head.view(-1)[3] = 1e30
        if "skip" in self._to_do and number == NOTICED:
            self._to_do.clear()
            guard.rollback(to=ONSET - 1 + first, skip=BAD, reason="batches that are not finite")
        is_last_rank = job.rank == job.ranks - 1
        if job.is_killed and job.is_first_launch and number == KILLED_AT and is_last_rank:
            job.mark_of_kill.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def lost_and_repeated(run: Path) -> tuple[set[int], int]:
    """Return the data positions that the final run was not trained on, and the repeated ones.

    Each step counts as it was done last: rollbacks and relaunches go back in the journal.
    """
    block = journal_of(run)
    last = dict(zip(block.step.tolist(), block.data_position.tolist(), strict=True))
    positions = [last[step] for step in sorted(last)]
    return set(range(max(positions) + 1)) - set(positions), len(positions) - len(set(positions))


def digest(model: torch.nn.Module, optimizer: Any) -> str:
    """A checksum of weights and moments."""
    found = hashlib.sha256()
    values = [value for state in optimizer.state.values() for value in state.values()]
    for tensor in [*model.parameters(), *map(torch.as_tensor, values)]:
        found.update(tensor.detach().float().numpy().tobytes())
    return found.hexdigest()


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, loss_of: Callable[[], torch.Tensor]) -> float:
    """The loss without dropout."""
    was_training = model.training
    model.eval()
    loss = float(loss_of())
    model.train(was_training)
    return loss
