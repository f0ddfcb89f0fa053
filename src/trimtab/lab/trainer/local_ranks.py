"""Ranks on this machine: forked processes with a file rendezvous and gloo."""

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
import torch._dynamo  # imported before the fork, so that the children need not import it
import torch.distributed as dist
import torch.distributed.fsdp

from trimtab.core.errors import LabError

TIMEOUT_SECONDS = 120
"""Default time for all ranks to return; callers with longer work pass `timeout`."""

_POLL_SECONDS = 0.2
"""Interval at which ranks that have not returned are checked for being alive."""


class RankFailed(LabError):
    """A rank raised an exception; the message is its traceback."""


class RanksLost(LabError):
    """Ranks died or timed out without raising an exception."""


def run_ranks(
    body: Callable[..., Any], world: int, *args: Any, timeout: float = TIMEOUT_SECONDS
) -> list[Any]:
    """Call `body(rank, *args)` on `world` ranks and return their results in order of rank.

    gloo sometimes aborts for reasons outside this code, so lost ranks are retried once.
    """
    try:
        return _run_once(body, world, args, timeout)
    except RanksLost:
        return _run_once(body, world, args, timeout)


def _run_once(
    body: Callable[..., Any], world: int, args: tuple[Any, ...], timeout: float
) -> list[Any]:
    context = multiprocessing.get_context("fork")
    results_queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = Path(folder) / "rendezvous"
        children = [
            context.Process(
                target=_child, args=(body, rank, world, rendezvous, results_queue, args)
            )
            for rank in range(world)
        ]
        for child in children:
            child.start()
        results: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        try:
            while len(results) < world:
                rank, result, error = _next_result(results_queue, children, deadline)
                if error is not None:
                    raise RankFailed(f"rank {rank} failed:\n{error}")
                results[rank] = result
        finally:
            for child in children:
                child.join(5 if len(results) == world else 0.1)
                if child.is_alive():
                    child.kill()
                    child.join()
            results_queue.close()
    return [results[rank] for rank in range(world)]


def _next_result(
    results_queue: Any, children: list[ForkProcess], deadline: float
) -> tuple[int, Any, str | None]:
    """Return the next rank's result; raises RanksLost if no more can be expected."""
    while True:
        try:
            message: tuple[int, Any, str | None] | None = results_queue.get(timeout=_POLL_SECONDS)
        except queues.Empty:
            message = None
        # When a rank dies, the others fail in their next collective, and their errors may arrive
        # before its exit code. Wait for the exit code, which names the real cause.
        if message is not None and message[2] is not None:
            time.sleep(_POLL_SECONDS)
        codes = [child.exitcode for child in children]
        if any(codes) or (message is None and time.monotonic() > deadline):
            raise RanksLost(f"ranks did not return, exit codes {codes}")
        if message is not None:
            return message


def _child(
    body: Callable[..., Any],
    rank: int,
    world: int,
    rendezvous: Path,
    results_queue: Any,
    args: tuple[Any, ...],
) -> None:
    # First: after a backward pass in the parent, its thread pool would deadlock here.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world
        )
        result = body(rank, *args)
        dist.barrier()
        dist.destroy_process_group()
        results_queue.put((rank, result, None))
    except BaseException:
        results_queue.put((rank, None, traceback.format_exc()))
    finally:
        results_queue.close()
        results_queue.join_thread()
        os._exit(0)  # skip exit handlers, which belong to the parent
