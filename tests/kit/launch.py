"""Real ranks for other people's loops: a rank that hangs fails its test in seconds.

Unlike the ranks of the lab, these are only tried again if one of them was aborted (gloo
does that now and then); a hang is the very thing that is looked for.
"""

import datetime
import faulthandler
import logging
import multiprocessing
import os
import queue
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported before the fork: every child would pay for it otherwise
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp

from tests.kit.user_loop import without_paths

DEADLINE_SECONDS = 40.0
"""For all ranks together; this machine may be busy."""
GROUP_SECONDS = 20.0
"""How long a collective waits for the others."""


@dataclass(frozen=True, kw_only=True)
class End:
    """How a rank came to its end."""

    result: Any = None
    error: str = ""
    code: int | None = None
    """The exit code; None if it had to be killed."""


def run_ranks(
    body: Callable[..., Any],
    world: int,
    *args: Any,
    deadline: float = DEADLINE_SECONDS,
    join: bool = True,
) -> list[Any]:
    """Call `body(rank, *args)` on `world` ranks; return what each returned.

    With `join=False` the body makes the process group itself, from the file that is its last
    argument.
    """
    ends = ends_of_ranks(body, world, *args, deadline=deadline, join=join)
    problems = [_problem(rank, end) for rank, end in enumerate(ends) if end.error or end.code != 0]
    assert not problems, "\n".join(problems)
    return [end.result for end in ends]


def ends_of_ranks(
    body: Callable[..., Any],
    world: int,
    *args: Any,
    deadline: float = DEADLINE_SECONDS,
    join: bool = True,
) -> list[End]:
    """Call `body` as `run_ranks` does; return how each rank came to its end, whatever it was."""
    ends = _run_once(body, world, args, deadline, join)
    if any(end.code == -signal.SIGABRT for end in ends):
        ends = _run_once(body, world, args, deadline, join)
    return ends


def in_child(body: Callable[..., Any], *args: Any, deadline: float = DEADLINE_SECONDS) -> Any:
    """Call `body(*args)` in a process of its own."""
    return run_ranks(_without_rank, 1, body, args, deadline=deadline, join=False)[0]


def _without_rank(rank: int, body: Callable[..., Any], args: Any, meeting: Path) -> Any:
    return body(*args)


def _problem(rank: int, end: End) -> str:
    if end.code is None:
        return f"rank {rank} hung"
    return f"rank {rank} ended with code {end.code}: {end.error}"


def _run_once(
    body: Callable[..., Any], world: int, args: Any, deadline: float, join: bool
) -> list[End]:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        children = [
            context.Process(
                target=_child, args=(body, rank, world, meeting, answers, args, join), daemon=True
            )
            for rank in range(world)
        ]
        for child in children:
            child.start()
        heard: dict[int, End] = {}
        end_of_patience = time.monotonic() + deadline
        while len(heard) < world and time.monotonic() < end_of_patience:
            try:
                rank, result, error = answers.get(timeout=0.1)
                heard[rank] = End(result=result, error=error)
            except queue.Empty:
                if all(child.exitcode is not None for child in children):
                    break
        codes = [_end(child, is_done=rank in heard) for rank, child in enumerate(children)]
        answers.close()
    return [
        End(
            result=heard[rank].result if rank in heard else None,
            error=heard[rank].error if rank in heard else "",
            code=codes[rank],
        )
        for rank in range(world)
    ]


def _end(child: Any, *, is_done: bool) -> int | None:
    child.join(5 if is_done else 0)
    if child.exitcode is None:
        child.kill()
        child.join()
        return 0 if is_done else None
    code: int = child.exitcode
    return code


def _child(
    body: Callable[..., Any],
    rank: int,
    world: int,
    meeting: Path,
    answers: Any,
    args: Any,
    join: bool,
) -> None:
    torch.set_num_threads(1)  # first of all: a parent that ran backward left a thread pool
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.disable()  # an abort is expected, and its traces would fill the screen
    try:
        if join:
            meet(rank, world, meeting)
            result = body(rank, *args)
            dist.barrier()
            dist.destroy_process_group()
        else:
            result = body(rank, *args, meeting)
        answers.put((rank, result, ""))
    except BaseException:
        answers.put((rank, None, traceback.format_exc()))
    finally:
        answers.close()
        answers.join_thread()
        os._exit(0)  # no clean-up of what belongs to the parent


def meet(rank: int, world: int, meeting: Path) -> None:
    """Make the default process group."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=GROUP_SECONDS),
    )


@contextmanager
def log_of_trimtab() -> Iterator[list[str]]:
    """What trimtab logs as a warning or worse on this rank."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(without_paths(record.getMessage()))  # type: ignore[method-assign]
    logger = logging.getLogger("trimtab")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def digest(model: torch.nn.Module) -> float:
    """A number that is equal on ranks with equal weights."""
    return float(sum(p.detach().double().abs().sum() for p in model.parameters()))
