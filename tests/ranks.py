"""Real ranks for tests: forked processes, gloo, a file to meet at."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported before the fork: every child would pay for it otherwise
import torch.distributed as dist
import torch.distributed.fsdp

TIMEOUT_SECONDS = 120


def run_ranks(body: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """Call `body(rank, *args)` on so many ranks; return what each returned.

    gloo aborts now and then for no reason of ours, so a crash (not an exception) is retried once.
    """
    try:
        return _run_once(body, world, args)
    except ChildProcessError:
        return _run_once(body, world, args)


def _run_once(body: Callable[..., Any], world: int, args: tuple[Any, ...]) -> list[Any]:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        children = [
            context.Process(target=_child, args=(body, rank, world, meeting, queue, args))
            for rank in range(world)
        ]
        for child in children:
            child.start()
        results: dict[int, Any] = {}
        try:
            for _ in children:
                rank, result, error = queue.get(timeout=TIMEOUT_SECONDS)
                if error is not None:
                    raise AssertionError(f"rank {rank} failed:\n{error}")
                results[rank] = result
        except Exception as error:
            codes = [child.exitcode for child in children]
            if isinstance(error, AssertionError):
                raise
            raise ChildProcessError(f"ranks did not answer, exit codes {codes}") from error
        finally:
            for child in children:
                child.join(5 if len(results) == world else 0.1)
                if child.is_alive():
                    child.kill()
                    child.join()
            queue.close()
    return [results[rank] for rank in range(world)]


def _child(
    body: Callable[..., Any],
    rank: int,
    world: int,
    meeting: Path,
    queue: Any,
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
        queue.put((rank, result, None))
    except BaseException:
        queue.put((rank, None, traceback.format_exc()))
    finally:
        queue.close()
        queue.join_thread()
        os._exit(0)  # no clean-up of what belongs to the parent
