"""Faults of the data, live: post-mortems name the tokens, rows or batches that were injected."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

from tests.kit.observing import with_observer  # noqa: F401

import trimtab
from trimtab.explain.diagnosis import Diagnosis
from trimtab.lab.corpus.data import TokenCorpus
from trimtab.lab.faults.data_faults import _RAREST
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.scenarios.suite import read_truth
from trimtab.report.batch_section import batch_lines

Trial = Callable[[Scenario], Path]

STEPS = 200

pytestmark = pytest.mark.usefixtures("with_observer")


def incident_at(run_dir: Path, step: int) -> Diagnosis:
    """The first incident after the fault began."""
    report = trimtab.diagnose(run_dir)
    return next(one for one in report.incidents if one.incident.last.step >= step)


def postmortem(run_dir: Path, diagnosis: Diagnosis) -> str:
    folder = f"{diagnosis.incident.number:04d}-step-{diagnosis.incident.onset.step:06d}"
    path = run_dir / "trimtab" / "incidents" / folder
    return (path / "postmortem.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind"), [(0, "rare tokens"), (15, "repeated phrase")])
def test_rare_tokens_and_repeated_phrases_are_named(
    seed: int, kind: str, trial: Trial, corpus: TokenCorpus
) -> None:
    run_dir = trial(Scenario(kind="F02", seed=seed, steps=STEPS, severity=0.5))
    truth = read_truth(run_dir)
    assert truth["facts"]["kind"] == kind
    incident = incident_at(run_dir, truth["onset"])
    batch = incident.batch
    assert batch is not None
    positions = truth["facts"]["data_positions"]
    assert batch.data_position in positions
    rarest = np.argsort(corpus.counts(), kind="stable")[:_RAREST].tolist()
    assert batch.tokens
    assert {token.id for token in batch.tokens} <= set(rarest)
    count = max(1, round(truth["strength"] * batch.num_rows))
    assert {row.row for row in batch.rows if row.reasons} == set(range(count))
    assert batch.rows[0].loss is not None  # the trainer records the losses of tokens
    text = postmortem(run_dir, incident)
    first = batch.tokens[0]
    assert f"| {first.id} {first.text!r} | {first.count} |" in text
    assert f"of the batch at position {batch.data_position}" in text


@pytest.mark.slow
def test_a_repeated_batch_is_named(trial: Trial) -> None:
    run_dir = trial(Scenario(kind="F03", seed=0, steps=STEPS, severity=0.5))
    truth = read_truth(run_dir)
    incident = incident_at(run_dir, truth["onset"])
    (position,) = truth["facts"]["data_positions"]
    repeated = incident.repeated_batch
    assert repeated is not None
    assert repeated.data_position == position
    assert repeated.count == 1 + truth["end"] - truth["onset"]
    line = f"he batch at position {position} was served {repeated.count} times"
    assert line in batch_lines(incident)[0]
    assert line in postmortem(run_dir, incident)
