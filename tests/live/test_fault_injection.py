"""A bug in any function of the guard costs what that function does, never the run or its bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.fault_injection import (
    FAULTS,
    Fault,
    Outcome,
    Target,
    Verdict,
    called_targets,
    inject,
    reference,
    sample,
    targets,
)
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.watched_run import MODES, collect_garbage

import trimtab

DANGEROUS = (
    "trimtab.live.loop.skips.*",
    "trimtab.live.loop.step_hooks.*",
    "trimtab.live.protect.discard.*",
    "trimtab.live.ranks.exchange.RankSync.*",
)
"""Functions around the update itself, all of which are tried in the mode that has them all."""

COUNTS = {"observe": 25, "protect": 25, "recover": 12}
"""Other functions that are tried; `scripts/bench attack faults` tries each of them."""


@pytest.mark.parametrize("mode", MODES)
def test_a_broken_function_never_reaches_the_training_loop(mode: str) -> None:
    whole = reference(mode)
    kinds = list(FAULTS.values())
    always = DANGEROUS if mode == "recover" else ()
    chosen = sample(called_targets(mode), COUNTS[mode], always)
    verdicts = [
        inject(target, kinds[index % len(kinds)], mode, whole)
        for index, target in enumerate(chosen)
    ]
    collect_garbage()
    broken = [verdict for verdict in verdicts if verdict.breaks_promise(mode)]
    assert not broken, "\n".join(_line(verdict) for verdict in broken)
    assert Outcome.HELD in {verdict.outcome for verdict in verdicts}


def _line(verdict: Verdict) -> str:
    return f"{verdict.target}: {verdict.outcome} {verdict.place} {verdict.error}"


def _target(name: str) -> Target:
    return next(target for target in targets() if target.name == name)


def test_the_attack_sees_an_exception_that_reaches_the_loop() -> None:
    target = _target("trimtab.live.guard.Guard.record")
    verdict = inject(target, Fault(is_late=True), "observe", reference("observe"))
    assert (verdict.outcome, verdict.place) == (Outcome.RAISED, "guard.record")
    assert verdict.is_allowed


def test_the_attack_sees_a_protection_that_is_lost() -> None:
    target = _target("trimtab.live.protect.gate.Gate.decide")
    verdict = inject(target, Fault(), "protect", reference("protect"))
    assert (verdict.outcome, verdict.has_nan) == (Outcome.OTHER_BITS, True)
    assert verdict.is_announced


class UserError(Exception):
    """What the user's own code raises."""


def _raise(*args: Any, **kwargs: Any) -> Any:
    raise UserError


def _broken_loader() -> Iterator[torch.Tensor]:
    yield from batches(3)
    raise UserError


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", ["loader", "forward", "backward", "closure", "step hook"])
def test_exceptions_of_the_user_pass(mode: str, place: str, tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if place == "step hook":
        optimizer.register_step_pre_hook(_raise)
    elif place == "forward":
        model.head.register_forward_hook(_raise)
    elif place == "backward":
        model.head.weight.register_post_accumulate_grad_hook(_raise)

    def train() -> None:
        with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:
            for step in guard.steps(_broken_loader() if place == "loader" else batches(5)):
                for batch in step:
                    loss = loss_of(model, batch)
                    guard.record(loss=loss, tokens=batch.numel())
                    loss.backward()
                guard.clip_grad_norm_(1.0)
                optimizer.step(_raise if place == "closure" else None)
                optimizer.zero_grad()

    with pytest.raises(UserError):
        train()
