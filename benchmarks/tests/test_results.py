"""A release measures what there is, and keeps the figures of one commit."""

from pathlib import Path

import pytest
from benchmarks import results
from benchmarks.release import MEASUREMENTS, keep_only
from benchmarks.results import publish, read_sections


def test_sections_of_other_commits_leave_and_the_rest_stays_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "RESULTS.md")
    for title, measured in (("Cost", "11111111"), ("Detection", "22222222"), ("Cost", "22222222")):
        monkeypatch.setattr(results, "commit", lambda measured=measured: measured)
        publish(title, f"scripts/bench {title}", f"of {measured}", [("found", 9, 8, "4 (theirs)")])
    sections = read_sections()
    assert list(sections) == ["Detection", "Cost"]
    assert "of 11111111" not in sections["Cost"]
    assert "| found | 9 | 8 | 4 (theirs) |" in sections["Cost"]
    assert keep_only("22222222", sections) == sections
    assert keep_only("11111111", sections) == {}


def test_every_measurement_is_a_benchmark() -> None:
    here = Path(results.__file__).parent
    for one in MEASUREMENTS:
        name = one.command.split()[0]
        assert (here / f"{name}.py").exists() or (here / name / "__main__.py").exists(), name
