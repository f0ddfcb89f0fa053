import os
from pathlib import Path

import pytest

from trimtab.readers import folders, read_log
from trimtab.readers.folders import list_log_files


def test_files_are_listed_level_by_level(tmp_path: Path) -> None:
    for name in ("b/c/deep", "b/z", "a", ".hidden/x", "b/.git/y"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [str(path.relative_to(tmp_path)) for path in list_log_files(tmp_path)] == [
        "a",
        "b/z",
        "b/c/deep",
    ]


def test_neither_circles_nor_pipes_nor_depth_nor_number_hold_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "circle").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    deep = tmp_path.joinpath(*"1234567")
    deep.mkdir(parents=True)
    (deep / "file").touch()
    assert list_log_files(tmp_path) == []
    for number in range(10):
        (tmp_path / f"file{number}").touch()
    monkeypatch.setattr(folders, "MAX_FILES", 4)
    assert len(list_log_files(tmp_path)) == 4


def test_a_folder_that_cannot_be_listed_is_empty(tmp_path: Path) -> None:
    assert list_log_files(tmp_path / "absent") == []


def test_logs_of_other_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "events.out.tfevents.1.host").write_bytes(b"")
    (tmp_path / "trainer_state.json").write_text('{"log_history": [{"step": 1, "loss": 2.5}]}')
    assert read_log(tmp_path).notes == (
        "Of the folder, 'trainer_state.json' is read.",
        "There are logs of other formats too, not read: 'runs' (tensorboard).",
    )
