"""What experiments answer, in loops with a planted fault."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.recovering import plain_run
from tests.kit.runs import FEATURES, Run, batches, same_run
from tests.kit.synthetic import ranked
from tests.probes.loops import answers_of, drive
from torch import nn

import trimtab
from trimtab.core.block import Event
from trimtab.core.causes import Cause
from trimtab.core.errors import ConfigError
from trimtab.explain.causes.experiments import propose
from trimtab.explain.causes.ranking import HARDWARE, Ranking
from trimtab.explain.evidence.checks import ObservedOutcome
from trimtab.probes.first_nonfinite import NonfiniteFinder
from trimtab.probes.precision import without_autocast
from trimtab.probes.rows import keep_rows
from trimtab.state.batches import num_rows

BAD = 40
"""The step with the fault."""


def ask(run: Run, folder: Path, experiment: str, **options: Any) -> Event:
    drive(run, folder, BAD + 6, probes={BAD + 3: (experiment, 3)}, **options)
    [answer] = answers_of(folder)
    return answer


def with_odd_rows(*rows: int) -> Run:
    data = batches(400, size=8)
    inputs, targets = data[BAD]
    inputs, targets = inputs.clone(), targets.clone()
    for row in rows:
        inputs[row] *= 30
        targets[row] *= -30
    data[BAD] = (inputs, targets)
    return plain_run(loader=data)


def test_half_names_the_sequences(tmp_path: Path) -> None:
    answer = ask(with_odd_rows(2, 5), tmp_path, "half")
    assert answer.facts["answer"] == "sequences"
    assert answer.facts["facts"]["rows"] == [[BAD, 0, 2], [BAD, 0, 5]]


class Tokens(nn.Module):
    """The mean of what its tokens stand for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, FEATURES)
        self.head = nn.Linear(FEATURES, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        loud = hidden * (1 + 400 * (tokens == 15)).unsqueeze(-1)
        out: torch.Tensor = self.head(loud.mean(1))
        return out


@pytest.mark.parametrize(("first", "last"), [(9, 9), (5, 8), (0, 19)])
def test_half_names_the_tokens(first: int, last: int, tmp_path: Path) -> None:
    dice = torch.Generator().manual_seed(3)
    data = [
        (torch.randint(15, (8, 20), generator=dice), torch.randn(8, 1, generator=dice) * 0.1)
        for _ in range(100)
    ]
    data[BAD][0][3, first : last + 1] = 15
    run = plain_run(loader=data)
    run.model = Tokens()
    run.optimizers = [torch.optim.AdamW(run.model.parameters(), lr=1e-3)]
    facts = ask(run, tmp_path, "half").facts
    assert facts["facts"]["rows"] == [[BAD, 0, 3]], facts["sentence"]
    [[found_first, found_last]] = facts["facts"]["tokens"]
    # Of many offending tokens some at the ends may be cut off.
    cut = (last - first) // 8 + (last > first)
    assert first <= found_first <= first + cut
    assert last - cut <= found_last <= last
    assert f"tokens {found_first} to {found_last}" in facts["sentence"]


@pytest.mark.parametrize("experiment", ["earlier", "next", "reference"])
def test_an_odd_batch_is_told_from_an_odd_state(experiment: str, tmp_path: Path) -> None:
    assert ask(with_odd_rows(1), tmp_path, experiment).facts["answer"] == "batch"


class Planted(nn.Module):
    """Gives NaN at one step of the loop."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.is_bad = False
        self.make = make
        self.scale = nn.Parameter(torch.ones(FEATURES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.scale
        return x + self.make(x) if self.is_bad else x


def planted_run(make: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Run, Planted]:
    run = plain_run()
    planted = Planted(make)
    run.model = nn.Sequential(planted, nn.Linear(FEATURES, 1))
    run.optimizers = [torch.optim.AdamW(run.model.parameters(), lr=1e-2)]
    return run, planted


@pytest.mark.parametrize(
    ("make", "operation", "phase"),
    [
        (lambda x: (x * 0).log(), "log", "forward"),
        (lambda x: (x * 0).abs().sqrt(), "SqrtBackward0", "backward"),
    ],
)
def test_module_and_operation_of_a_nan_are_named(
    make: Callable[[torch.Tensor], torch.Tensor], operation: str, phase: str, tmp_path: Path
) -> None:
    run, planted = planted_run(make)

    def plant(guard: Any, step: Any) -> None:
        planted.is_bad = step.number == BAD

    answer = ask(run, tmp_path, "first-nonfinite", on_step=plant)
    assert answer.facts["answer"] == "operation"
    found = answer.facts["facts"]
    assert found["module"] == "0"
    assert operation in found["operation"]
    assert found["phase"] == phase


def flip_once(weight: torch.Tensor) -> Callable[[Any, Any], None]:
    """Changes one number of a weight at the bad step, and not when the step is done again."""
    was_flipped: list[bool] = []

    def flip(guard: Any, step: Any) -> None:
        if step.number == BAD and not was_flipped:
            was_flipped.append(True)
            with torch.no_grad():
                weight.view(-1)[3] += 50.0

    return flip


def test_a_number_that_changed_once_is_hardware(tmp_path: Path) -> None:
    run = plain_run()
    flip = flip_once(next(run.model.parameters()))
    answer = ask(run, tmp_path, "again", on_step=flip)
    assert answer.facts["answer"] == "hardware"
    assert answer.facts["facts"]["first"] == BAD


def test_weights_that_differ_from_their_replay_are_corrupted(tmp_path: Path) -> None:
    run = plain_run()
    flip = flip_once(run.model.get_parameter("inner.weight"))
    answer = ask(run, tmp_path, "restore-check", on_step=flip)
    assert answer.facts["answer"] == "corrupted"
    assert answer.facts["facts"]["tensor"] == "inner.weight"


def test_an_overflow_of_fp16_is_finite_without_autocast(tmp_path: Path) -> None:
    run = plain_run()

    class Loud(nn.Module):
        is_bad = False

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(FEATURES, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.float16):
                x = x * 3e5 if self.is_bad else x
                out: torch.Tensor = self.linear(x)
                return out

    run.model = loud = Loud()
    run.optimizers = [torch.optim.AdamW(run.model.parameters(), lr=1e-2)]

    def plant(guard: Any, step: Any) -> None:
        loud.is_bad = step.number == BAD

    assert ask(run, tmp_path, "fp32", on_step=plant).facts["answer"] == "precision"


def test_autocast_works_again_afterwards() -> None:
    linear = nn.Linear(4, 4)
    with without_autocast(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.ones(1, 4)).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.ones(1, 4)).dtype is torch.bfloat16


def test_a_full_mask_is_named_and_a_causal_one_is_not() -> None:
    class Attend(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(mask, float("-inf")).softmax(-1)

    causal = torch.ones(4, 4, dtype=torch.bool).triu(1)
    model, found = Attend(), dict[str, Any]()
    with NonfiniteFinder(model, found):
        model(torch.randn(4, 4), causal)
    assert found == {}
    with NonfiniteFinder(model, found):
        model(torch.randn(4, 4), torch.ones(4, 4, dtype=torch.bool))
    assert found["operation"] == "_softmax"


def test_rows_are_exchanged_in_every_tensor_of_a_batch() -> None:
    batch = {"x": torch.ones(4, 3), "y": torch.ones(4), "scale": torch.tensor(2.0)}
    other = {"x": torch.zeros(4, 3), "y": torch.zeros(4), "scale": torch.tensor(3.0)}
    mixed = keep_rows(batch, other, [1, 3])
    assert num_rows(batch) == 4
    assert mixed["x"].sum(1).tolist() == [0, 3, 0, 3]
    assert mixed["y"].tolist() == [0, 1, 0, 1]
    assert mixed["scale"] == 2.0
    assert batch["x"].sum() == 12  # the batch itself is as it was


def proposed_for(
    ranking: Ranking, *, is_nonfinite: bool = False, is_state_nonfinite: bool = False
) -> str | None:
    proposal = propose(
        ranking,
        is_nonfinite=is_nonfinite,
        is_state_nonfinite=is_state_nonfinite,
        is_half_precision=False,
        made=(),
    )
    return None if proposal is None else proposal.experiment


def test_the_experiment_that_separates_the_first_two_causes_is_proposed() -> None:
    ranking = ranked(gradient_huge=ObservedOutcome.YES)
    proposed = proposed_for(ranking)
    assert proposed == "again"
    assert ranking.first.cause is Cause.BAD_DEVICE
    assert proposed_for(ranking, is_nonfinite=True) == "first-nonfinite"


def test_a_replay_shows_where_weights_that_are_not_finite_come_from() -> None:
    ranking = ranked(early=ObservedOutcome.YES, gradient_fell=ObservedOutcome.YES)
    assert ranking.first.cause not in HARDWARE
    assert proposed_for(ranking, is_state_nonfinite=True) == "again"


def test_a_step_that_is_finite_when_it_is_done_again_speaks_for_the_hardware() -> None:
    nonfinite = {"loss_nonfinite": ObservedOutcome.YES, "state_nonfinite_first": ObservedOutcome.NO}
    before = ranked(**nonfinite, operation_not_finite=ObservedOutcome.NO)
    after = ranked(
        **nonfinite, operation_not_finite=ObservedOutcome.NO, finite_again=ObservedOutcome.YES
    )
    assert before.first.cause not in HARDWARE
    assert after.first.cause in HARDWARE


def test_an_exact_answer_outweighs_that_something_unknown_may_fit() -> None:
    against = {"loss_nonfinite": ObservedOutcome.YES, "state_nonfinite_first": ObservedOutcome.NO}
    ranking = ranked(
        **against, gradient_nonfinite_first=ObservedOutcome.NO, replay_differs=ObservedOutcome.YES
    )
    assert ranking.first.cause in HARDWARE


def test_an_answer_is_evidence_like_any_other() -> None:
    before = ranked(gradient_huge=ObservedOutcome.YES).first
    after = ranked(gradient_huge=ObservedOutcome.YES, replay_differs=ObservedOutcome.NO).first
    assert before.cause is Cause.BAD_DEVICE
    assert after.cause not in HARDWARE


def test_a_new_user_reads_module_and_operation_in_the_post_mortem(tmp_path: Path) -> None:
    run, planted = planted_run(lambda x: (x * 0) / (x * 0))

    def plant(guard: Any, step: Any) -> None:
        planted.is_bad = step.data_position == BAD

    straight, unprobed = planted_run(lambda x: (x * 0) / (x * 0))

    def plant_too(guard: Any, step: Any) -> None:
        unprobed.is_bad = step.data_position == BAD

    run.losses.clear()
    settings = {"ladder.enabled": True, "probes.enabled": True}
    drive(run, tmp_path / "probed", 80, on_step=plant, settings=settings)
    without = {**settings, "probes.enabled": False}
    drive(straight, tmp_path / "straight", 80, on_step=plant_too, settings=without)
    [page] = (tmp_path / "probed").glob("trimtab/incidents/*/postmortem.md")
    text = page.read_text()
    assert "Verified by experiment (first-nonfinite" in text
    assert "div gives NaN from finite inputs in the forward pass of 0" in text.replace("\\", "")
    cause = text.split("## Root cause")[1].split("##")[0].replace("\\", "")
    assert "an experiment has found which one" in cause
    assert "forward pass of 0 (Planted)" in cause
    plan = trimtab.replay(tmp_path / "probed")
    assert "first-nonfinite" in plan.answers
    assert BAD in plan.positions
    with pytest.raises(ConfigError, match="no incident 7; it has: 1"):
        trimtab.replay(tmp_path / "probed", incident=7)
    del run.losses[BAD], straight.losses[BAD]  # NaN is not equal to itself
    same_run(straight, run)
