"""A resume that leaves something out is named; a right one raises nothing."""

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.kit.cases import some_of
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import are_equal, events_of, take_step
from tests.kit.user_loop import weights as weights_of
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from trimtab.lab.trainer.local_ranks import run_ranks

pytest.importorskip("torchdata")
from tests.kit.resumes import RIGHT, WRONG, Script, Setup, is_named, resume

import trimtab
from trimtab.core.findings import Symptom
from trimtab.journal import AUDIT_EVENT
from trimtab.journal.resume.facts import STATE_SAVED


@pytest.mark.parametrize("kind", WRONG)
def test_what_was_not_restored_is_named_first(kind: str, tmp_path: Path) -> None:
    outcome = resume(kind, 2, tmp_path)
    assert is_named(kind, outcome), outcome
    # An offline diagnosis says the same.
    assert any(WRONG[kind] in note for note in outcome.diagnosed)
    assert any(cause in ("F05", "F06", "F18") for cause in outcome.diagnosed)


@pytest.mark.parametrize("kind", some_of(RIGHT, "at the end", "planned change"))
def test_a_right_resume_raises_nothing(kind: str, tmp_path: Path) -> None:
    outcome = resume(kind, 3, tmp_path)
    assert not outcome.named
    assert not outcome.incidents


def audited(folder: Path) -> list[str]:
    """The symptoms that audits have journalled."""
    found = [sentence for e in events_of(folder, AUDIT_EVENT) for sentence in e.facts["findings"]]
    return [sentence.split(" (")[0] for sentence in found]


class Plain:
    """The user's own loop, without `guard.steps` and without the guard in the checkpoint."""

    def __init__(self, folder: Path, *, lr: float = 1e-2, momentum: float = 0.0) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = make_model()
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        if momentum:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum)

    def watch(self, first: int, mode: str = "observe") -> Any:
        facts = {"step": first}
        return trimtab.watch(
            self.model, self.optimizer, run_dir=self.folder, mode=mode, facts=facts
        )

    def run(self, first: int, last: int, *, state: Any = None, mode: str = "observe") -> list[str]:
        """Train, and return the symptoms that the audit has journalled."""
        with self.watch(first, mode) as guard:
            if state is not None:
                guard.load_state_dict(state)
            for batch in batches(last)[first:]:
                take_step(guard, self.optimizer, loss_of(self.model, batch))
            self.saved = guard.state_dict()
        return audited(self.folder)


def test_without_a_saved_guard_the_journal_shows_lost_moments(tmp_path: Path) -> None:
    first = Plain(tmp_path)
    first.run(0, 25)
    again = Plain(tmp_path)
    again.model.load_state_dict(first.model.state_dict())
    # Step 23 was never saved: only the records around it are known.
    assert again.run(23, 28) == [
        Symptom.MOMENTS_NOT_RESTORED,
        Symptom.OPTIMIZER_STEP_NOT_RESTORED,
    ]


def test_without_a_saved_guard_a_right_resume_raises_nothing(tmp_path: Path) -> None:
    first = Plain(tmp_path)
    first.run(0, 25)
    # The process goes on where it is: the state of step 25, at a step that was not saved.
    assert first.run(26, 30) == []


@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_in_protect_mode_the_audit_sees_the_state_as_it_was_loaded(
    tmp_path: Path, mode: str
) -> None:
    first = Plain(tmp_path, momentum=0.9)
    first.run(0, 20, mode=mode)
    assert first.run(20, 25, state=first.saved, mode=mode) == []
    lost = Plain(tmp_path, momentum=0.9)
    lost.model.load_state_dict(first.model.state_dict())
    found = lost.run(25, 30, state=first.saved, mode=mode)
    assert found == [Symptom.MOMENTS_NOT_RESTORED, Symptom.RNG_NOT_RESTORED]


def test_a_changed_learning_rate_and_option_are_warnings_and_open_no_incident(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Plain(tmp_path)
    first.run(0, 20)
    for group in first.optimizer.param_groups:
        group["lr"], group["weight_decay"] = 5e-3, 0.5
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        assert first.run(20, 24) == [Symptom.LR_CHANGED, Symptom.OPTIONS_CHANGED]
    lines = [r.getMessage() for r in caplog.records if "resume at step 20" in r.getMessage()]
    assert len(lines) == 1
    assert "planned change" in lines[0]
    report = trimtab.diagnose(tmp_path)
    assert not report.incidents
    assert any(Symptom.LR_CHANGED in note for note in report.notes)


def test_random_state_in_a_plain_loop_is_only_judged_where_it_repeats_the_start(
    tmp_path: Path,
) -> None:
    first = Plain(tmp_path)
    first.run(0, 20)
    # Restored after `watch`, where the audit cannot see it: no finding.
    assert first.run(20, 22, state=first.saved) == []
    state, other = first.saved, Plain(tmp_path)  # seeds again
    other.model.load_state_dict(first.model.state_dict())
    other.optimizer.load_state_dict(first.optimizer.state_dict())
    assert other.run(22, 24, state=state) == [Symptom.RNG_NOT_RESTORED]


def test_a_saved_state_is_text_for_any_checkpoint_and_saving_changes_no_bit(tmp_path: Path) -> None:
    script = Script(Setup.of(0, ""))
    with script.watch(tmp_path, 0) as guard:
        script.train(guard, 0, 5, {})
        generator, weights = torch.get_rng_state(), weights_of(script.model)
        state = guard.state_dict()
        assert torch.equal(generator, torch.get_rng_state())
        assert are_equal(weights, script.model.parameters())
    torch.save(state, tmp_path / "guard.pt")
    assert torch.load(tmp_path / "guard.pt", weights_only=True) == state
    facts = json.loads(state["audit"])
    assert facts["step"] == facts["optimizer_step"] == facts["data_position"] == 5
    saved = events_of(tmp_path, STATE_SAVED)
    assert [event.step for event in saved] == [5, 5]  # `close` does not journal it a third time


def test_a_state_that_is_loaded_after_watch_is_seen_as_it_was_loaded(tmp_path: Path) -> None:
    # DCP steps a fresh optimizer once, with zero gradients, to have a state to load into.
    first = Plain(tmp_path)
    first.run(0, 20)
    random = torch.get_rng_state()
    again = Plain(tmp_path)
    weights, moments = first.model.state_dict(), first.optimizer.state_dict()
    with again.watch(20) as guard:
        guard.load_state_dict(first.saved)
        get_optimizer_state_dict(again.model, again.optimizer)
        again.model.load_state_dict(weights)
        again.optimizer.load_state_dict(moments)
        torch.set_rng_state(random)
        take_step(guard, again.optimizer, loss_of(again.model, batches(21)[20]))
    (audit,) = events_of(tmp_path, AUDIT_EVENT)
    assert audit.facts["found"]["optimizer_step"] == 20.0
    assert audited(tmp_path) == []


def test_the_resume_after_a_wrong_one_is_judged_by_the_run_before(tmp_path: Path) -> None:
    first = Plain(tmp_path)
    first.run(0, 20)
    weights = copy.deepcopy(first.model.state_dict())
    moments = copy.deepcopy(first.optimizer.state_dict())
    state = first.saved
    for lr in (1e-4, 1e-2):  # only the first is a finding
        first.model.load_state_dict(weights)
        first.optimizer.load_state_dict(copy.deepcopy(moments))
        for group in first.optimizer.param_groups:
            group["lr"] = lr
        assert first.run(20, 25, state=state) == [Symptom.LR_CHANGED]


def on_ranks(rank: int, folder: Path, first: int, keeps: bool) -> list[str]:
    """Train 10 steps under DDP, from what an earlier call has saved; rank 0's findings."""
    path = folder / "checkpoint.pt"
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    state = torch.load(path, weights_only=False) if first else {}
    if first:
        model.load_state_dict(state["model"])
        if keeps:
            optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
    with trimtab.watch(wrapped, optimizer, run_dir=folder / "run", facts={"step": first}) as guard:
        guard.load_state_dict(state.get("guard", {}))
        for step in guard.steps(batches(first + 10, seed=rank)[first:], data_position=first):
            take_step(guard, optimizer, loss_of(wrapped, *step))
        if rank == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            random = torch.get_rng_state()
            torch.save({**parts, "random": random, "guard": guard.state_dict()}, path)
    return [] if rank else audited(folder / "run")


def test_ranks_are_audited_by_the_first_and_their_number_may_change(tmp_path: Path) -> None:
    assert run_ranks(on_ranks, 2, tmp_path, 0, True)[0] == []
    assert run_ranks(on_ranks, 2, tmp_path, 10, True)[0] == []
    assert on_ranks(0, tmp_path, 20, True) == []  # one rank, without DDP
    lost = [Symptom.MOMENTS_NOT_RESTORED, Symptom.OPTIMIZER_STEP_NOT_RESTORED]
    assert run_ranks(on_ranks, 2, tmp_path, 30, False)[0] == lost


def on_shards(rank: int, folder: Path) -> list[str]:
    """FSDP2: three guards on one run, and the moments of a shard lost before the third."""
    model = make_model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state: dict[str, Any] = {}
    for first in (0, 10, 20):
        moments = optimizer.state_dict()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        optimizer.load_state_dict(moments)
        if first == 20:
            for part in optimizer.state.values():
                part["exp_avg"].zero_()
        with trimtab.watch(model, optimizer, run_dir=folder, facts={"step": first}) as guard:
            guard.load_state_dict(state)
            for batch in batches(first + 10, seed=rank)[first:]:
                take_step(guard, optimizer, loss_of(model, batch))
            state = guard.state_dict()
        dist.barrier()
    return [] if rank else audited(folder)


def test_shards_are_compared_with_the_same_shards(tmp_path: Path) -> None:
    assert run_ranks(on_shards, 2, tmp_path)[0] == [Symptom.MOMENTS_NOT_RESTORED]
