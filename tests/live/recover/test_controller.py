"""A run that recovers by itself: from the alarm to the same bits as if nothing had happened."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.tiny import batches, loss_of, make_model
from torch import nn, optim

import trimtab
from trimtab.core.block import Event
from trimtab.core.config import Config
from trimtab.core.errors import RunStopped
from trimtab.decide.ladder import recompute
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.exit_request import ExitRequest
from trimtab.live.guard import Guard

STEPS = 172
ONSET = 150
"""Detectors of jumps have their 64 measurements by then, one every second step."""
BATCHES = batches(400, size=16)


class Loop:
    """A user's loop; `disturb` gets itself, the step and how many steps came before."""

    def __init__(
        self,
        disturb: Callable[["Loop", int, int], None] = lambda *_: None,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
        rank: int = 0,
    ) -> None:
        torch.manual_seed(0)
        self.plain = make_model()
        self.model = wrap(self.plain)
        self.data = BATCHES[rank:]
        self.optimizer = optim.AdamW(self.model.parameters(), lr=3e-3, betas=(0.9, 0.95))
        self.guard: Any = None
        self.losses: dict[int, float] = {}
        self._disturb = disturb
        self._ticks = 0

    def train(self, folder: Path, *, with_probe: bool = True, **settings: Any) -> "Loop":
        with trimtab.watch(
            self.model,
            self.optimizer,
            run_dir=folder,
            mode="recover",
            config=Config().override(settings),
            batch_loss=(lambda batch: loss_of(self.model, batch)) if with_probe else None,
        ) as guard:
            assert isinstance(guard, Guard)
            self.guard = guard
            for step in guard.steps(self.data):
                self._disturb(self, step.number, self._ticks)
                self._ticks += 1
                for batch in step:
                    loss = loss_of(self.model, batch)
                    guard.record(loss=loss, tokens=batch.numel())
                    loss.backward()
                guard.clip_grad_norm_(1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses[step.number] = loss.item()
                if step.number + 1 == STEPS:
                    break
        return self


def events(folder: Path, *kinds: str) -> list[Event]:
    found = read_journal(RunDirectory(folder)).block.events
    return [event for event in found if event.kind in kinds]


def acts(folder: Path) -> list[str]:
    decided = [str(event.facts["act"]) for event in events(folder, "decision")]
    return [act for act in decided if act not in ("wait", "probe")]


def assert_same(one: Loop, other: Loop) -> None:
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert one.losses == other.losses


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Loop:
    folder = tmp_path_factory.mktemp("clean")
    loop = Loop().train(folder)
    assert acts(folder) == []
    assert len(events(folder, "probe")) == STEPS // 52  # only the canary
    return loop


def flip_weight(loop: Loop, step: int, tick: int) -> None:
    """Once, whatever the run does."""
    if tick == ONSET:
        with torch.no_grad():
            loop.plain.head.weight[3, 3] = 1e30


def test_a_flipped_weight_is_restored_to_the_same_bits_and_checked(
    clean: Loop, tmp_path: Path
) -> None:
    loop = Loop(flip_weight).train(tmp_path)
    assert acts(tmp_path) == ["restore"]
    assert_same(clean, loop)
    kinds = {event.kind for event in events(tmp_path, "probe", "decision", "rollback", "check")}
    assert kinds == {"probe", "decision", "rollback", "check"}
    (check,) = events(tmp_path, "check")
    assert check.facts["helped"] is True
    number, mismatches = recompute(RunDirectory(tmp_path).decisions)
    assert number >= 1
    assert mismatches == []


def test_without_batch_loss_it_is_restored_too(clean: Loop, tmp_path: Path) -> None:
    loop = Loop(flip_weight).train(tmp_path, with_probe=False)
    assert "restore" in acts(tmp_path)
    assert_same(clean, loop)
    assert not events(tmp_path, "probe")


def strong_decay(loop: Loop, step: int, tick: int) -> None:
    """Whenever the step comes: the user's code does it."""
    if step == ONSET:
        loop.optimizer.param_groups[0]["weight_decay"] = 100.0


def test_a_setting_that_changes_again_is_held(clean: Loop, tmp_path: Path) -> None:
    loop = Loop(strong_decay).train(tmp_path)
    assert acts(tmp_path) == ["restore"]
    (rollback,) = events(tmp_path, "rollback")
    assert rollback.facts["hold"] == ["weight_decay"]
    (changed,) = events(tmp_path, "settings changed")
    assert (changed.facts["before"], changed.facts["after"]) == (0.01, 100.0)
    assert loop.optimizer.param_groups[0]["weight_decay"] == 100.0  # the user's code sees its own
    assert_same(clean, loop)


def test_a_change_that_was_announced_is_not_undone(tmp_path: Path) -> None:
    def announced(loop: Loop, step: int, tick: int) -> None:
        if step == ONSET:
            loop.guard.event("planned change", what="decay")
        strong_decay(loop, step, tick)

    Loop(announced).train(tmp_path)
    assert acts(tmp_path) == []


@pytest.mark.parametrize("by_step", [True, False], ids=["comes again", "once"])
def test_a_rate_that_jumps_is_held_and_released_when_it_is_back(
    by_step: bool, clean: Loop, tmp_path: Path
) -> None:
    def rate_jump(loop: Loop, step: int, tick: int) -> None:
        jumps = ONSET <= (step if by_step else tick) < ONSET + 10
        loop.optimizer.param_groups[0]["lr"] = 0.3 if jumps else 3e-3

    loop = Loop(rate_jump).train(tmp_path)
    assert acts(tmp_path) == ["restore"]
    assert [event.facts["name"] for event in events(tmp_path, "released")] == ["lr"]
    assert_same(clean, loop)


def test_trouble_that_comes_again_and_again_stops_the_run(tmp_path: Path) -> None:
    def broken(loop: Loop, step: int, tick: int) -> None:
        if step >= ONSET:
            with torch.no_grad():
                loop.plain.head.weight.fill_(float("nan"))

    with pytest.raises(RunStopped) as stopped:
        Loop(broken).train(tmp_path)
    assert stopped.value.code == 76
    request = ExitRequest.read(RunDirectory(tmp_path).home)
    assert request is not None
    assert request.code == 76
    assert "came back" in str(stopped.value)
    assert acts(tmp_path)[-1] == "stop"
    assert len(events(tmp_path, "rollback")) <= 4


def test_a_stopped_run_exits_with_its_code() -> None:
    script = "from trimtab.core.errors import RunStopped; raise RunStopped('why', 75)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 75


def test_a_bug_in_deciding_costs_only_the_deciding(
    clean: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr("trimtab.live.recover.decide.controller.decide", fail)
    loop = Loop(flip_weight).train(tmp_path)
    assert len(loop.losses) == STEPS
