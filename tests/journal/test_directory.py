import json
import math
from pathlib import Path

import pytest

from trimtab.core.errors import JournalError
from trimtab.journal import RunDirectory


def test_find_takes_the_run_or_its_trimtab_folder(tmp_path: Path) -> None:
    assert RunDirectory.find(tmp_path) is None
    assert RunDirectory.find(tmp_path / "nowhere") is None
    (tmp_path / "loop").symlink_to("loop")
    assert RunDirectory.find(tmp_path / "loop") is None
    run = RunDirectory(tmp_path / "x1")
    run.write_manifest({})
    for path in (run.root, run.home):
        found = RunDirectory.find(path)
        assert found is not None
        assert found.home.samefile(run.home)
    assert RunDirectory.find(run.manifest) is None
    assert RunDirectory.find(tmp_path) is None


def test_find_takes_a_journal_without_a_manifest_but_not_a_source_tree(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.journal.mkdir(parents=True)
    (run.journal / "writer.py").touch()
    assert RunDirectory.find(tmp_path) is None
    (run.journal / "00000000.log").touch()
    assert RunDirectory.find(tmp_path) == run


def test_the_folder_trimtab_is_found_from_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    run.write_manifest({})
    monkeypatch.chdir(run.home)
    found = RunDirectory.find(Path())
    assert found is not None
    assert found.home.samefile(run.home)


def test_a_manifest_comes_back_with_unknown_fields(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert run.read_manifest() == {}
    run.write_manifest({"seed": 1, "future": {"a": [1, None]}, "scale": math.inf})
    assert run.read_manifest() == {"seed": 1, "future": {"a": [1, None]}, "scale": "Infinity"}
    run.write_manifest({"seed": 2})
    assert run.read_manifest() == {"seed": 2}
    assert [path.name for path in run.home.iterdir()] == ["manifest.json"], "no draft is left"


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00\x01", '"x"', "[" * 100_000])
def test_a_damaged_manifest_is_reported(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    run.write_manifest({})
    run.manifest.write_text(text)
    with pytest.raises(JournalError, match=r"manifest\.json .*restore it from a copy"):
        run.read_manifest()


def test_a_failed_write_leaves_the_old_manifest(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_manifest({"seed": 1})
    endless: dict[str, object] = {}
    endless["self"] = endless
    with pytest.raises(RecursionError):
        run.write_manifest(endless)
    assert json.loads(run.manifest.read_text()) == {"seed": 1}
