"""Run directories of earlier versions are read, continued and resumed from."""

import shutil
from pathlib import Path

import pytest
from tests.kit.printed_json import call

from trimtab.journal import RunDirectory, add_note, read_journal
from trimtab.journal.lines import SCHEMA
from trimtab.journal.writer import JournalWriter

HERE = Path(__file__).parent
RUNS = sorted(path.name for path in HERE.iterdir() if (path / "trimtab").is_dir())


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    shutil.copytree(HERE / request.param, tmp_path / "run")
    return tmp_path / "run"


def test_there_is_a_run_of_each_release() -> None:
    assert {name.split("-")[0] for name in RUNS} == {"0.1", "0.2"}


def test_commands_read_it(run: Path) -> None:
    printed = call("diagnose", run)
    assert printed["records"] == 120
    assert printed["goodput"]["steps_kept"] == 120
    assert printed["incidents"] == []  # one high batch at step 90
    assert call("observe", run, "--once")["text"].startswith("ended")
    assert add_note(RunDirectory(run), "read by a later version") == 119
    assert call("compare", run, run)["comparisons"][0]["within"]


def test_it_is_not_damaged_and_its_schema_is_known(run: Path) -> None:
    reading = read_journal(RunDirectory(run))
    assert reading.damage == ()
    assert reading.schema <= SCHEMA
    assert RunDirectory(run).read_manifest()["trimtab"] in ("0.1.0", "0.2.0")


def test_it_can_be_continued(run: Path) -> None:
    with JournalWriter(RunDirectory(run)) as journal:
        journal.append(120, {"loss": 1.0})
    assert len(read_journal(RunDirectory(run)).block) == 121


@pytest.mark.parametrize("name", ["0.1-last", "0.2-last"])
def test_its_checkpoint_is_verified_and_loaded(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints

    shutil.copytree(HERE / name, tmp_path / "run")
    model = torch.nn.Linear(4, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    resumed = Checkpoints(model, optimizer, run_dir=tmp_path / "run", keep=2).resume()
    assert resumed is not None
    assert resumed.step == 81
    assert not torch.equal(model.weight, before)
