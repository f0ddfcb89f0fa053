"""A run directory of a stranger leads nowhere: nothing outside is read, written or deleted.

Here each case is tried on the door that it aims at; `scripts/bench attack hostile` tries all cases
on all doors.
"""

import shutil
from pathlib import Path

import pytest
from tests.kit.hostile import CASES, DOORS, Place, attack, make_place

AIMS = {
    "checkpoints": "train",
    "partial": "train",
    "journal.lock": "train",
    "judge": "train",
    "tensorboard": "ship",
    "ship": "ship",
    "postmortem.md": "ship",
    "incidents": "write",
    "LESSONS": "write",
    "dashboard": "write",
    "notes": "write",
}
"""Doors by a part of the name of a case; the first counts, and all others are read."""
QUICK = (
    *("link trimtab to", "trimtab/journal to", "checkpoints to", "incidents to"),
    *("0080 to", "000100 to", "tensorboard/trimtab to", "ship to", "PID.tmp to"),
    *("seg.tmp to", "0003.log to", "postmortem.md", "postmortem.html", "dashboard.html to", "../"),
    *("notes.log to", "tensorboard.lock", "names of other", "an absolute folder"),
    *(
        "a source above",
        "checkpoints.json: infinite",
        "journal.lock: a pipe",
        "verdicts.json: inf",
        "names_in",
        "last ticks",
        "huge drop",
    ),
    *("with names", "wrong data", "0003.log: a", "metadata: a pipe", "a number", "second_name"),
)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return make_place(tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if any(part in name for part in QUICK) else pytest.mark.slow)
        for name in CASES
    ],
)
def test_nothing_outside_of_a_run_directory_is_touched(
    name: str, healthy: Place, tmp_path: Path
) -> None:
    for folder in (healthy.run, healthy.outside):
        shutil.copytree(folder, tmp_path / folder.relative_to(healthy.outside.parent))
    place = Place(run=tmp_path / "runs" / "run", outside=tmp_path / "outside")
    door = next((door for part, door in AIMS.items() if part in name), "read")
    assert attack(name, place, {door: DOORS[door]}) == []
