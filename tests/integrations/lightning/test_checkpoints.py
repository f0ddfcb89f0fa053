"""Checkpoints that the Lightning Trainer saves get verdicts, and the guard resumes with them."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from tests.kit.cases import some_of
from tests.kit.lightning import BEGINS_AGAIN, Module, Run, watched
from tests.kit.observing import observe
from tests.kit.tiny import batches, journal_of
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.integrations.lightning import last_good_checkpoint
from trimtab.journal import AUDIT_EVENT
from trimtab.journal.checkpoints.index import Verdict
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # of torchdata

SAVES = {"enable_checkpointing": True}


def saving(folder: Path, every: int, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", every_n_train_steps=every, **options)


def test_the_last_proven_one_outlives_save_top_k(tmp_path: Path) -> None:
    own = tmp_path / "own"
    run = Run(steps=210, make=lambda: Module(planned=300, lr=1e-3), trainer=SAVES)
    run.fit([watched(tmp_path), saving(own, 100, save_top_k=1)])
    assert [path.name for path in own.iterdir()] == ["step=200.ckpt"]
    observe(tmp_path)
    entries = Checkpoints(run_dir=tmp_path).entries
    verdicts = {entry.step: entry.verdict for entry in entries}
    assert verdicts == {100: Verdict.PROVEN, 200: Verdict.UNPROVEN}
    assert last_good_checkpoint(tmp_path) is not None
    assert not list((tmp_path / "trimtab" / "lightning").iterdir())


def test_a_run_without_checkpoints_begins(tmp_path: Path) -> None:
    assert last_good_checkpoint(tmp_path) is None


def test_weights_alone_are_not_registered(tmp_path: Path) -> None:
    Run(trainer=SAVES).fit([watched(tmp_path), saving(tmp_path, 4, save_weights_only=True)])
    assert Checkpoints(run_dir=tmp_path).entries == ()


def fit_on(
    folder: Path, steps: int, callbacks: list[L.Callback], loader: Any, resume: str | None
) -> L.Trainer:
    run = Run(steps=steps, trainer=SAVES)
    _, trainer = run.fit(callbacks, train_dataloaders=loader, ckpt_path=resume)
    return trainer


@pytest.mark.skipif(L.__version__.startswith("2.1."), reason="it saves no state of a loader")
@pytest.mark.parametrize("mode", some_of(["observe", "protect", "recover"], "recover"))
def test_a_resumed_run_goes_on_where_it_was(mode: str, tmp_path: Path) -> None:
    """The journal is one run without a gap, and a right resume opens no incident."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    data = batches(40)

    def callbacks() -> list[L.Callback]:
        return [watched(tmp_path, mode), saving(tmp_path / "own", 10, save_top_k=-1)]

    fit_on(tmp_path, 20, callbacks(), stateful(data, batch_size=None), None)
    found = last_good_checkpoint(tmp_path)
    again = stateful(data, batch_size=None)
    fit_on(tmp_path, 30, callbacks(), again, found)
    block = journal_of(tmp_path)
    assert block.step.tolist() == list(range(30))
    assert block.data_position.tolist() == list(range(30))
    assert observe(tmp_path) == ()


def test_a_plain_loader_that_begins_its_epoch_again_is_an_incident(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data: Any = batches(40)
    loader = DataLoader(data, batch_size=None)
    callbacks = [watched(tmp_path), saving(tmp_path / "own", 10, save_top_k=-1)]
    fit_on(tmp_path, 20, callbacks, loader, None)
    with pytest.warns(UserWarning, match=BEGINS_AGAIN):  # by Lightning
        fit_on(tmp_path, 30, callbacks, loader, last_good_checkpoint(tmp_path))
    assert any("data restarted at a resume" in record.getMessage() for record in caplog.records)


@pytest.mark.skipif(L.__version__.startswith("2.1."), reason="it saves no state of a loader")
def test_a_rollback_is_taken_by_last_good_checkpoint(tmp_path: Path) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    data = batches(40)

    def callbacks() -> list[L.Callback]:
        return [watched(tmp_path, "protect"), saving(tmp_path / "own", 10, save_top_k=-1)]

    fit_on(tmp_path, 25, callbacks(), stateful(data, batch_size=None), None)
    request = ["rollback", str(tmp_path), "--to", "10", "--skip", "12:14", "--lr-factor", "0.5"]
    assert CliRunner().invoke(app, [*request, "--yes"]).exit_code == 0
    found = last_good_checkpoint(tmp_path)
    fit_on(tmp_path, 20, callbacks(), stateful(data, batch_size=None), found)
    block = journal_of(tmp_path)
    again = block[25:]
    assert again.step.tolist() == again.data_position.tolist() == list(range(10, 20))
    assert again.step[again.column("discarded").values == 1.0].tolist() == [12, 13]
    planned = block[10:20].column("lr").values
    assert again.column("lr").values.tolist() == (planned / 2).tolist()
    assert [e.facts["findings"] for e in block.events if e.kind == AUDIT_EVENT] == [[]]
