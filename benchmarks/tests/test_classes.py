"""Classes of incidents scored against the twin of a lab run and the labels of a public one."""

import re

import numpy as np
from benchmarks.detect.class_tables import class_section
from benchmarks.detect.classes import Judged, lab_classed, real_classed
from benchmarks.detect.intervals import share_of
from benchmarks.detect.suite import LabRun
from benchmarks.detect.suite_bars import bar_tables, examine
from benchmarks.tests.runs import event, labelled, quiet_block
from tests.kit.synthetic import block_of

from trimtab.core.incidents import IncidentClass

ONSET, STEPS = 300, 600


def lab_run(kind: str = "clean", *, excess: np.ndarray | float = 0.0, norm: float = 1.0) -> LabRun:
    """A run of the lab whose loss has this excess, and whose norm is so many times larger."""
    random = np.random.default_rng(0)
    loss = 3.0 + random.normal(0, 0.03, STEPS)
    grad_norm = random.normal(0.5, 0.02, STEPS)
    loss[ONSET:] += excess
    grad_norm[ONSET : ONSET + 3] *= norm
    is_clean = kind == "clean"
    return LabRun(
        name=f"{kind}-severe-seed2",
        kind=kind,
        grade="severe",
        split="held-out",
        onset=None if is_clean else ONSET,
        twin=None if is_clean else "clean-severe-seed2",
        block=block_of({"loss": loss, "grad_norm": grad_norm}, first_step=0),
    )


def spike(steps: int) -> np.ndarray:
    return np.where(np.arange(STEPS - ONSET) < steps, 1.0, 0.0)


def test_an_incident_of_the_lab_is_scored_against_the_twin() -> None:
    run = lab_run("F02", excess=spike(20))
    found = lab_classed(run, lab_run(), Judged.of(run.block))
    assert found is not None
    assert found.truth is found.final is IncidentClass.RECOVERED
    assert found.is_right()
    assert abs(found.onset_error) <= 1
    assert set(found.said) == {8, 32}
    calm = lab_run("F01")
    assert lab_classed(calm, lab_run(), Judged.of(calm.block)) is None


def test_a_wrong_class_is_told_with_the_run() -> None:
    # The gap is over the twin, but under what one run can see of itself.
    excess = np.where(np.arange(STEPS - ONSET) < 20, 1.0, 0.04)
    examined = examine([lab_run(), lab_run("F05", excess=excess, norm=20.0)])
    lab = [item.classed for item in examined if item.classed]
    text = class_section(lab, [], ("held-out",))
    assert "| F05-severe-seed2 | lingering | recovered | +0 |" in text
    assert "| lab, held-out |" in text
    assert re.search(r"\| lingering \| 1 \|", text)


def test_the_bars_tell_what_was_missed_and_who_was_alarmed() -> None:
    runs = [
        lab_run(),
        lab_run("F02", excess=spike(20)),
        lab_run("F01", norm=1.5),  # moves by more than 5 sigma, and nobody alarms
        lab_run("F13"),  # never differs: does not have to be found
    ]
    text = bar_tables(examine(runs), ("tune", "held-out"))
    assert re.search(
        r"\| held-out \| 1 of 2; 50 % \[1, 99\] \| 2 of 2; .* \| 0 of 1; 0 % \[0, 98\] \|", text
    )
    assert re.search(r"\| F01 \| severe \| 1 of 1 \| `grad_norm` \| \d+ to \d+ \|", text)
    assert "F13" not in text
    assert "| clean | - | 0 of 1; 0 % [0, 98] | - |" in text


def test_a_labelled_incident_is_scored_against_its_label() -> None:
    block = quiet_block(1500)
    block.columns["loss"].values[900:930] += 1.0
    run = labelled(block, event(900, 930))
    (found,) = real_classed([run])
    assert found.truth is IncidentClass.RECOVERED
    assert found.is_right()
    assert real_classed([labelled(block)]) == []


def test_a_share_has_its_exact_interval() -> None:
    assert share_of(9, 10) == "9 of 10; 90 % [55, 100]"
    assert share_of(0, 44) == "0 of 44; 0 % [0, 8]"
    assert share_of(0, 0) == "-"
