"""Signals, two guards, a failed start, a changed folder: as without trimtab afterwards."""

import contextlib
import os
import signal
import subprocess
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit import forked
from tests.kit.tiny import make_model
from tests.kit.user_loop import (
    Run,
    adamw,
    are_equal,
    discarded_steps,
    is_finite,
    losses,
    watching,
    weights,
)

import trimtab
from trimtab.core.errors import TrimtabError


@pytest.fixture
def graceful() -> Iterator[list[int]]:
    """A handler of the user's that only takes note of SIGTERM."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGTERM, before)


def test_training_after_a_graceful_sigterm_is_still_protected(
    graceful: list[int], tmp_path: Path
) -> None:
    def interrupt(step: int) -> None:
        if step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with watching(tmp_path, "protect") as run:
        run.train(20, nan_at={14}, before_step=interrupt)
    assert len(graceful) == 1
    assert is_finite(run.model)
    assert discarded_steps(tmp_path) == [14]
    assert len(losses(tmp_path)) == 20


@pytest.mark.parametrize("make", [adamw, torch.optim.AdamW])
def test_a_sigterm_inside_a_bad_step_lets_nothing_through(
    make: Any, graceful: list[int], tmp_path: Path
) -> None:
    current: list[int] = []

    def interrupt(*_: Any) -> None:
        if current[-1] == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with watching(tmp_path, "protect", make=make) as run:
        run.optimizer.register_step_pre_hook(interrupt)  # runs after the guard's
        run.train(12, nan_at={8}, before_step=current.append)
    assert len(graceful) == 1
    assert is_finite(run.model)


def test_the_sigterm_handler_is_the_users_again_whatever_the_order_of_closing(
    graceful: list[int], tmp_path: Path
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    before = signal.getsignal(signal.SIGTERM)
    for order in ((0, 1), (1, 0)):
        guards = [
            trimtab.watch(model, optimizer, run_dir=tmp_path / f"{order}{k}") for k in range(2)
        ]
        for k in order:
            guards[k].close()
        assert signal.getsignal(signal.SIGTERM) is before


WAITING = """
    import datetime, sys
    import torch, torch.distributed as dist
    import trimtab

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = trimtab.watch(model, optimizer, run_dir=sys.argv[1])
    store = dist.HashStore()
    store.set_timeout(datetime.timedelta(seconds=3))
    print("ready", flush=True)
    store.wait(["never"])  # in C++, as a collective whose peer is stuck
"""


@pytest.mark.xfail(strict=True, reason="a handler in Python runs only when the wait has ended")
def test_a_sigterm_ends_a_process_that_waits_in_a_collective(tmp_path: Path) -> None:
    with forked.Forked(
        ["-c", textwrap.dedent(WAITING), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.3)
        sent = time.monotonic()
        child.terminate()
        assert child.wait(timeout=30) == -signal.SIGTERM
        took = time.monotonic() - sent
    assert took < 1.5


def test_two_guards_leave_nothing_on_the_optimizer(tmp_path: Path) -> None:
    with (
        watching(tmp_path / "0", "protect") as run,
        trimtab.watch(run.model, run.optimizer, run_dir=tmp_path / "1", mode="protect") as second,
    ):

        class Both:
            def record(self, **numbers: Any) -> None:
                run.guard.record(**numbers)
                second.record(**numbers)

        Run(Both(), run.model, run.optimizer).train(6, nan_at={5})
    assert not {"found_inf", "grad_scale"} & set(vars(run.optimizer))
    before = weights(run.model)
    with trimtab.watch(run.model, run.optimizer, run_dir="unused", enabled=False) as off:
        Run(off, run.model, run.optimizer).train(8, skip=range(6))
    assert is_finite(run.model)
    assert not are_equal(before, weights(run.model))


def traces(model: torch.nn.Module, optimizer: Any) -> list[Any]:
    return [
        sum(len(module._forward_hooks) for module in model.modules()),
        len(optimizer._optimizer_step_pre_hooks),
        len(optimizer._optimizer_step_post_hooks),
        sorted(t.name for t in threading.enumerate() if "trimtab" in t.name),
        signal.getsignal(signal.SIGTERM),
    ]


@pytest.mark.parametrize("fails", ["at once", "late"])
def test_a_failed_start_leaves_nothing_behind_and_can_be_tried_again(
    fails: str, tmp_path: Path
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    run_dir = tmp_path / "run"
    manifest = run_dir / "trimtab" / "manifest.json"
    if fails == "late":
        manifest.mkdir(parents=True)  # cannot be written as a file
    else:
        run_dir.write_text("not a folder")
    before = traces(model, optimizer)
    for _ in range(3):
        with contextlib.suppress(TrimtabError, OSError):
            trimtab.watch(model, optimizer, run_dir=run_dir).close()
    assert traces(model, optimizer) == before
    manifest.rmdir() if fails == "late" else run_dir.unlink()
    with trimtab.watch(model, optimizer, run_dir=run_dir) as guard:
        Run(guard, model, optimizer).train(5)
    assert len(losses(run_dir)) == 5


def test_a_relative_run_directory_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with watching("run") as run:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        run.train(6)
    assert len(losses(tmp_path / "run")) == 6
    assert list((tmp_path / "elsewhere").iterdir()) == []
