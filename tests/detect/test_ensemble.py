"""Every detector finds the same, however a run is cut and wherever it is saved and loaded."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.detect.runs import every_kind_of_run

from trimtab.core.block import Block
from trimtab.core.findings import Finding
from trimtab.detect.ensemble import Ensemble


def found(pieces: list[Block]) -> list[str]:
    ensemble = Ensemble()
    return [told(finding) for piece in pieces for finding in ensemble.feed(piece)]


def told(finding: Finding) -> str:
    return repr(finding)


@pytest.mark.parametrize("seed", range(24))
def test_any_cut_and_any_save_gives_the_same_findings(seed: int) -> None:
    random = np.random.default_rng(seed)
    run = every_kind_of_run(seed, int(random.choice([30, 200, 700, 1500])))
    whole = found([run])

    assert found(list(run.cut(1))) == whole
    edges = np.sort(random.integers(0, len(run) + 1, 6)).tolist()
    bounds = [0, *edges, len(run)]
    assert found([run[a:b] for a, b in pairwise(bounds)]) == whole

    saved_at = edges[3]
    first, second = Ensemble(), Ensemble()
    head = first.feed(run[:saved_at])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [told(finding) for finding in [*head, *second.feed(run[saved_at:])]] == whole


def test_the_runs_of_that_test_bring_every_detector_to_speak() -> None:
    names = {
        finding.detector
        for seed in range(24)
        for finding in Ensemble().feed(every_kind_of_run(seed, 1500))
    }
    silent = {part.name for part in Ensemble()._detectors} - names - {"loss-watch"}
    assert not silent


def test_the_page_on_detection_has_every_detector() -> None:
    page = (Path(__file__).parents[2] / "docs" / "detection.md").read_text(encoding="utf-8")
    names = {part.name for part in Ensemble()._detectors} - {"loss-watch"}
    assert {name for name in names if f"| [{name}](" not in page} == set()
