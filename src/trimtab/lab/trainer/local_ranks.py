"""Ranks on this machine: forked processes that meet in a file and talk by gloo."""

import multiprocessing
import os
import queue as queues
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported before the fork: every child would pay for it otherwise
import torch.distributed as dist
import torch.distributed.fsdp

from trimtab.core.errors import LabError

TIMEOUT_SECONDS = 120
"""Until all ranks have answered; what takes longer says so."""

_LOOK_SECONDS = 0.2
"""Between two looks at whether ranks that have not answered are still alive."""


class RankFailed(LabError):
    """A rank raised; its traceback is the message."""


class RanksLost(LabError):
    """Ranks died or fell silent without raising."""


def run_ranks(
    body: Callable[..., Any], world: int, *args: Any, timeout: float = TIMEOUT_SECONDS
) -> list[Any]:
    """Call `body(rank, *args)` on so many ranks; return what each returned.

    gloo aborts now and then for no reason of ours, so lost ranks are tried once more.
    """
    try:
        return _run_once(body, world, args, timeout)
    except RanksLost:
        return _run_once(body, world, args, timeout)


def _run_once(
    body: Callable[..., Any], world: int, args: tuple[Any, ...], timeout: float
) -> list[Any]:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        children = [
            context.Process(target=_child, args=(body, rank, world, meeting, answers, args))
            for rank in range(world)
        ]
        for child in children:
            child.start()
        results: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        try:
            while len(results) < world:
                rank, result, error = _next_answer(answers, children, deadline)
                if error is not None:
                    raise RankFailed(f"rank {rank} failed:\n{error}")
                results[rank] = result
        finally:
            for child in children:
                child.join(5 if len(results) == world else 0.1)
                if child.is_alive():
                    child.kill()
                    child.join()
            answers.close()
    return [results[rank] for rank in range(world)]


def _next_answer(
    answers: Any, children: list[ForkProcess], deadline: float
) -> tuple[int, Any, str | None]:
    """What the next rank has to say; raises RanksLost if none is to be expected."""
    while True:
        try:
            answer: tuple[int, Any, str | None] | None = answers.get(timeout=_LOOK_SECONDS)
        except queues.Empty:
            answer = None
        # A rank that dies makes the others fail in their next meeting: what they say is its echo.
        # They may be faster than its end.
        if answer is not None and answer[2] is not None:
            time.sleep(_LOOK_SECONDS)
        codes = [child.exitcode for child in children]
        if any(codes) or (answer is None and time.monotonic() > deadline):
            raise RanksLost(f"ranks did not answer, exit codes {codes}")
        if answer is not None:
            return answer


def _child(
    body: Callable[..., Any],
    rank: int,
    world: int,
    meeting: Path,
    answers: Any,
    args: tuple[Any, ...],
) -> None:
    # First of all: a parent that ran backward leaves a thread pool that a child would wait for.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=world
        )
        result = body(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
        answers.put((rank, result, None))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
    finally:
        answers.close()
        answers.join_thread()
        os._exit(0)  # no clean-up of what belongs to the parent
