"""What a log and its folder say about a run besides its records."""

from pathlib import Path

import pytest

from trimtab.readers.facts import find_checkpoints


@pytest.mark.parametrize(
    ("log", "found"),
    [
        ("checkpoint-500/trainer_state.json", ["step2", "checkpoint-500"]),
        ("runs/step2/log.jsonl", []),  # step3 beside it may be a run of its own
        ("log.jsonl", ["step2", "checkpoint-500"]),
    ],
)
def test_checkpoints_are_looked_for_where_trainers_put_them(
    log: str, found: list[str], tmp_path: Path
) -> None:
    for name in ("checkpoint-500", "step2", "runs/step2", "runs/step3"):
        (tmp_path / name).mkdir(parents=True)
    assert list(find_checkpoints(tmp_path / log, "").values()) == found
