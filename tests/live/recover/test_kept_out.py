"""Steps that were kept out of the weights, or undone, harm no verdict about the run."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.kit.observing import observe
from tests.kit.tiny import batches, journal_of, loss_of, make_model
from tests.kit.user_loop import take_step, watching

import trimtab
from trimtab.core.actions import ActionKind
from trimtab.core.config import Config
from trimtab.core.errors import NonFiniteRun
from trimtab.core.incidents import IncidentClass
from trimtab.journal import RunDirectory
from trimtab.journal.checkpoints.index import CheckpointIndex, Verdict

adamw = partial(torch.optim.AdamW, lr=3e-3)
SAVED, AT, AFTER = 40, 150, 45
"""A checkpoint that is proven when the first bad step comes; steps after the last one."""


def run_with_nans(
    folder: Path, *, count: int, mode: str, every: int = 1, skips_itself: bool = False
) -> None:
    """Train with losses that are NaN, unattended, and save in between."""
    model = make_model()
    bad = range(AT, AT + every * count, every)
    data = batches(8)
    optimizer = adamw(model.parameters())
    with trimtab.watch(
        model,
        optimizer,
        run_dir=folder,
        mode=mode,
        config=Config().override({"ladder.unattended": True}),
        checkpoints=trimtab.Checkpoints(model, optimizer, run_dir=folder),
    ) as guard:
        for at in range(bad[-1] + AFTER):
            loss = loss_of(model, data[at % 8]) * (math.nan if at in bad else 1.0)
            if skips_itself and at in bad:
                guard.record(loss=loss)
                guard.skip()
                continue
            take_step(guard, optimizer, loss)
            if at in (SAVED, bad[-1] + 5):
                guard.checkpoint()


@pytest.mark.parametrize(
    ("mode", "count", "every", "skips_itself"),
    [
        ("protect", 40, 1, False),
        ("recover", 3, 1, False),
        pytest.param("recover", 8, 17, False, marks=pytest.mark.slow),
        ("recover", 5, 1, True),
    ],
)
def test_nans_that_were_kept_out_change_nothing(
    mode: str, count: int, every: int, skips_itself: bool, tmp_path: Path
) -> None:
    run_with_nans(tmp_path, count=count, mode=mode, every=every, skips_itself=skips_itself)
    report = trimtab.diagnose(tmp_path)
    (found,) = report.incidents
    assert found.incident.facts.is_kept_out
    assert found.incident_class is IncidentClass.KEPT_OUT
    assert found.action.kind is ActionKind.WAIT
    assert "nothing to do" in report.verdict
    observe(tmp_path)
    entries = CheckpointIndex(RunDirectory(tmp_path).home).entries
    assert [entry.verdict for entry in entries] == [Verdict.PROVEN, Verdict.UNPROVEN]
    assert not any(entry.in_doubt for entry in entries)


def test_a_run_that_is_never_finite_again_ends_without_blaming_the_weights(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteRun, match=r"101 steps in a row .* discarded"):
        run_with_nans(tmp_path, count=110, mode="protect")
    (found,) = trimtab.diagnose(tmp_path).incidents
    assert "lost" not in found.action.reason


def test_the_proof_of_an_undo_is_the_cause_of_its_incident(tmp_path: Path) -> None:
    with watching(tmp_path, "recover", make=adamw) as run:
        for at, batch in enumerate(batches(200)):
            if at == 100:
                run.model.embed.weight.detach().numpy()[3, 5] = math.inf  # as a device would
            run.step(batch)
    (found,) = trimtab.diagnose(tmp_path).incidents
    assert found.incident_class is IncidentClass.RESTORED
    assert found.action.kind is ActionKind.WAIT
    assert found.cause is None
    assert "embed.weight not finite" in found.root_cause
    assert found.hypotheses[0].statement == "embed.weight not finite"


def test_a_validation_through_guard_steps_lends_no_batches_to_the_training(tmp_path: Path) -> None:
    held_out = batches(5, seed=9)
    with watching(tmp_path, make=adamw) as run:
        for step in run.guard.steps(batches(100)):
            run.step(*step)
            if step.number % 20 == 19:
                for validation in run.guard.steps(held_out):
                    with torch.no_grad():
                        loss_of(run.model, *validation)
    block = journal_of(tmp_path)
    assert block.data_position.tolist() == list(range(100))
    fingerprints = block.column("fingerprint")
    assert len(set(fingerprints.values[fingerprints.present].tolist())) == 100
    assert trimtab.diagnose(tmp_path).incidents == ()
