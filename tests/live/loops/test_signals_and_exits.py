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
    adamw,
    are_equal,
    discarded_steps,
    is_finite,
    losses,
    train,
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
    model = make_model()
    optimizer = adamw(model.parameters())

    def interrupt(step: int) -> None:
        if step == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect") as guard:
        train(guard, model, optimizer, 20, nan_at={14}, before_step=interrupt)
    assert len(graceful) == 1
    assert is_finite(model)
    assert discarded_steps(tmp_path) == [14]
    assert len(losses(tmp_path)) == 20


@pytest.mark.parametrize("fused", [True, False])
def test_a_sigterm_inside_a_bad_step_lets_nothing_through(
    fused: bool, graceful: list[int], tmp_path: Path
) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused or None)
    guard = trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect")
    current: list[int] = []

    def interrupt(*_: Any) -> None:
        if current[-1] == 8:
            os.kill(os.getpid(), signal.SIGTERM)

    optimizer.register_step_pre_hook(interrupt)  # runs after the guard's
    with guard:
        train(guard, model, optimizer, 12, nan_at={8}, before_step=current.append)
    assert len(graceful) == 1
    assert is_finite(model)


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
    store.set_timeout(datetime.timedelta(seconds=6))
    print("ready", flush=True)
    store.wait(["never"])  # in C++, as a collective whose peer is stuck
"""


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
        code = child.wait(timeout=30)
        took = time.monotonic() - sent
    assert code == -signal.SIGTERM
    assert took < 4


def test_two_guards_leave_nothing_on_the_optimizer(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    guards = [
        trimtab.watch(model, optimizer, run_dir=tmp_path / str(k), mode="protect") for k in range(2)
    ]

    class Both:
        def record(self, **numbers: Any) -> None:
            for guard in guards:
                guard.record(**numbers)

    train(Both(), model, optimizer, 6, nan_at={5})
    for guard in guards:
        guard.close()
    assert not {"found_inf", "grad_scale"} & set(vars(optimizer))
    before = weights(model)
    with trimtab.watch(model, optimizer, run_dir="unused", enabled=False) as off:
        train(off, model, optimizer, 8, skip=range(6))
    assert is_finite(model)
    assert not are_equal(before, weights(model))


def traces(model: torch.nn.Module, optimizer: Any) -> list[Any]:
    hooks = [len(module._forward_hooks) for module in model.modules()]
    threads = sorted(t.name for t in threading.enumerate() if "trimtab" in t.name)
    return [
        sum(hooks),
        len(optimizer._optimizer_step_pre_hooks),
        len(optimizer._optimizer_step_post_hooks),
        threads,
        signal.getsignal(signal.SIGTERM),
    ]


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    (tmp_path / "file").write_text("not a folder")
    before = traces(model, optimizer)
    for _ in range(3):
        try:
            guard = trimtab.watch(model, optimizer, run_dir=tmp_path / "file" / "run")
        except (TrimtabError, OSError):
            continue
        guard.close()
    assert traces(model, optimizer) == before


def test_a_start_that_fails_late_can_be_tried_again(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    manifest = tmp_path / "run" / "trimtab" / "manifest.json"
    manifest.mkdir(parents=True)  # cannot be written as a file
    before = traces(model, optimizer)
    with contextlib.suppress(TrimtabError, OSError):
        trimtab.watch(model, optimizer, run_dir=tmp_path / "run").close()
    assert traces(model, optimizer) == before
    manifest.rmdir()
    with trimtab.watch(model, optimizer, run_dir=tmp_path / "run") as guard:
        train(guard, model, optimizer, 5)
    assert len(losses(tmp_path / "run")) == 5


def test_a_relative_run_directory_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    monkeypatch.chdir(tmp_path)
    with trimtab.watch(model, optimizer, run_dir="run") as guard:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        train(guard, model, optimizer, 6)
    assert len(losses(tmp_path / "run")) == 6
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_same_run_directory_again_in_one_process_is_no_other_process(tmp_path: Path) -> None:
    model = make_model()
    optimizer = adamw(model.parameters())
    first = trimtab.watch(model, optimizer, run_dir=tmp_path)
    try:
        second = trimtab.watch(model, optimizer, run_dir=tmp_path)
    except TrimtabError as error:
        refusal = str(error)
        assert "this process" in refusal
        assert "close" in refusal
    else:
        second.close()
    finally:
        first.close()
