"""RESULTS.md is written section by section, and a release measures what is left."""

from pathlib import Path

import pytest
from benchmarks import results
from benchmarks.release import MEASUREMENTS, Measurement, Release, keep_only
from benchmarks.results import publish, read_sections


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty page in place of the real one."""
    path = tmp_path / "RESULTS.md"
    monkeypatch.setattr(results, "RESULTS", path)
    return path


def test_a_section_replaces_the_one_of_the_same_title(page: Path) -> None:
    publish("Speed", "scripts/bench speed", "slow", [("steps per second", 3, "at least 2")])
    publish("Cost", "scripts/bench cost", "dear")
    publish("Speed", "scripts/bench speed", "fast", [("steps per second", 9, "at least 2")])
    assert list(read_sections()) == ["Cost", "Speed"]
    text = page.read_text(encoding="utf-8")
    assert "slow" not in text
    assert "| steps per second | 9 | at least 2 |  | [`speed`](#speed) |" in text.split("\n## ")[0]


def test_sections_stand_in_groups_and_other_tools_beside_us(page: Path) -> None:
    publish("Support matrix", "scripts/bench matrix", "", [("cases", 3, 3)])
    publish("Detection", "scripts/bench detect", "", [("found", 9, 8, "4 (theirs)")])
    assert list(read_sections()) == ["Detection", "Support matrix"]
    head = page.read_text(encoding="utf-8").split("\n## ")[0]
    row = "| found | 9 | 8 | 4 (theirs) | [`detect`](#detection) |"
    found, cases = head.index(row), head.index("| cases |")
    assert head.index("**Finding**") < found < head.index("**Scale and support**") < cases


def test_sections_of_other_commits_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    for title, measured in (("old", "11111111"), ("new", "22222222")):
        monkeypatch.setattr(results, "commit", lambda measured=measured: measured)
        publish(title, "scripts/bench speed", "fast")
    assert list(keep_only("22222222", read_sections())) == ["new"]


def test_what_failed_is_measured_again_and_what_succeeded_is_not(tmp_path: Path) -> None:
    wrong = Measurement("no_such_benchmark")
    release = Release(tmp_path / "release", [wrong])
    assert release.run() == [wrong]
    assert release.run() == [wrong]
    right = Measurement("results")  # a module that does nothing when it is run
    again = Release(tmp_path / "release", [right])
    assert again.run() == []
    (done,) = (tmp_path / "release" / "results").glob("done")
    before = done.stat().st_mtime_ns
    assert again.run() == []
    assert done.stat().st_mtime_ns == before


def test_every_measurement_is_a_benchmark() -> None:
    here = Path(results.__file__).parent
    for one in MEASUREMENTS:
        name = one.command.split()[0]
        assert (here / f"{name}.py").exists() or (here / name / "__main__.py").exists(), name
