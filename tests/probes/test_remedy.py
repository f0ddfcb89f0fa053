"""What the run does against an incident is tried first, on a state that is thrown away."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.live.recover import test_controller
from tests.live.recover.test_controller import Loop, acts, assert_same, flip_weight, strong_decay
from tests.live.recover.test_controller_ranks import flip_on_one_rank, wrap
from tests.probes.loops import answers_of

from trimtab.lab.trainer.local_ranks import run_ranks


@pytest.mark.parametrize("disturb", [flip_weight, strong_decay])
def test_a_remedy_is_tried_and_then_carried_out(
    disturb: Callable[[Loop, int, int], None], tmp_path: Path
) -> None:
    clean = Loop().train(tmp_path / "clean")
    loop = Loop(disturb).train(tmp_path / "run", **{"probes.enabled": True})
    assert acts(tmp_path / "run") == ["restore"]
    assert_same(clean, loop)
    answers = {str(event.facts["probe"]): event.facts for event in answers_of(tmp_path / "run")}
    assert answers["remedy"]["answer"] == "gone", answers["remedy"]["sentence"]
    assert answers["remedy"]["steps"] > 0
    [page] = (tmp_path / "run").glob("trimtab/incidents/*/postmortem.md")
    assert "Verified by experiment (remedy" in page.read_text()


def flipped_on_a_rank(layout: str, folder: Path, rank: int) -> None:
    test_controller.STEPS = 195  # in this process alone; orders take their time between ranks
    clean = Loop(wrap=partial(wrap, layout), rank=rank).train(folder / "clean")
    loop = Loop(partial(flip_on_one_rank, rank), partial(wrap, layout), rank)
    settings: dict[str, Any] = {"probes.enabled": True, "probes.max_steps": 80}
    loop.train(folder / "run", **settings)
    assert loop.losses == clean.losses
    for one, other in zip(clean.model.parameters(), loop.model.parameters(), strict=True):
        mine, theirs = (t.to_local() if hasattr(t, "to_local") else t for t in (one, other))
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("layout", ["ddp", pytest.param("fsdp2", marks=pytest.mark.slow)])
def test_all_ranks_try_it_and_carry_it_out(layout: str, tmp_path: Path) -> None:
    run_ranks(partial(flipped_on_a_rank, layout, tmp_path), 2, timeout=300)
    assert acts(tmp_path / "run") == ["restore"]
    said = {event.facts["probe"]: event.facts["answer"] for event in answers_of(tmp_path / "run")}
    assert said["remedy"] == "gone"
    [again] = [e.facts for e in answers_of(tmp_path / "run") if e.facts["probe"] == "again"]
    assert (again["answer"], again["facts"]["rank"]) == ("hardware", 1)
