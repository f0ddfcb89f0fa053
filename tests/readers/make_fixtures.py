"""Writes the fixtures of the trackers' readers, each by the package whose files are read.

    python -m tests.readers.make_fixtures [NAME ...]

What is written is `written.ROWS`. The packages are not needed to run the tests: where one is
installed, a test writes its fixture anew and compares it with the committed one.
"""

import argparse
import contextlib
import gzip
import importlib
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit import forked
from tests.readers.written import FIRST, ROWS, SECOND

HF_LOSSES = [4.0 - step / 4 for step in range(12)]
HF_LOSSES[3], HF_LOSSES[8] = math.nan, math.inf
"""The losses of the training steps, in the order of the data."""

ROOT = Path(__file__).parents[2]
FIXTURES = Path(__file__).parent / "fixtures"


def tensorboard(folder: Path) -> None:
    """Two event files, as a restart leaves them: old and new style of scalars."""
    from torch.utils.tensorboard import SummaryWriter

    for number, rows in enumerate((FIRST, SECOND)):
        with tempfile.TemporaryDirectory() as scratch:
            writer = SummaryWriter(scratch)
            for row in rows:
                for name, value in row.values().items():
                    writer.add_scalar(f"train/{name}", value, row.step, new_style=number == 1)
            writer.close()
            (written,) = Path(scratch).iterdir()
            # The name that the writer gives has the machine's name in it.
            shutil.move(written, folder / f"events.out.tfevents.{1700000000 + number}.host")


def hf(folder: Path) -> None:
    """The state of a Trainer that was resumed at step 6 of 12, logged at every step and at every
    second one, with a loss that is NaN at step 4 and infinite at step 9."""
    for stride in (1, 2):
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            _train(stride, until=9, resume=False)
            _train(stride, until=12, resume=True)
            shutil.copy("out/checkpoint-12/trainer_state.json", folder / f"every_{stride}.json")


def _train(stride: int, *, until: int, resume: bool) -> None:
    """Train a model whose loss and gradient are given by its data."""
    import torch

    transformers: Any = importlib.import_module("transformers")

    class Told(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, loss: torch.Tensor) -> dict[str, torch.Tensor]:
            lever = self.weight * 0.5
            return {"loss": (loss * (1 + lever - lever.detach())).sum()}

    class Heal(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: object, model: Told, **__: object) -> None:
            model.weight.data.zero_()  # else all that follows a NaN is NaN

    class InOrder(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: object) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    InOrder(
        model=Told(),
        args=transformers.TrainingArguments(
            output_dir="out",
            max_steps=until,
            per_device_train_batch_size=1,
            logging_steps=stride,
            save_steps=3,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            max_grad_norm=0.0,
        ),
        train_dataset=[{"loss": torch.tensor(loss)} for loss in HF_LOSSES],
        callbacks=[Heal()],
    ).train(resume_from_checkpoint="out/checkpoint-6" if resume else None)


def wandb(folder: Path) -> None:
    """An offline run; W&B drops steps that go back, so the restart has a step of its own."""
    package: Any = importlib.import_module("wandb")
    with tempfile.TemporaryDirectory() as scratch:
        settings = package.Settings(
            console="off",
            disable_git=True,
            save_code=False,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            host="host",
        )
        names = {"project": "fixture", "name": "run", "id": "fixture"}
        run = package.init(mode="offline", dir=scratch, settings=settings, **names)
        for row in ROWS:
            signals = {f"train/{name}": value for name, value in row.values().items()}
            run.log({**signals, "trainer/global_step": row.step, "note": "x", "deep": {"a": 1.5}})
            if row.step in (3, 14):  # so that the file has more than one block
                run.log({"pixels": package.Histogram(list(range(2000)), num_bins=512)})
        run.finish()
        package.teardown()  # only then is all on disk
        (written,) = Path(scratch).glob("wandb/offline-run-*/*.wandb")
        shutil.copy(written, folder / "run-fixture.wandb")


def mlflow(folder: Path) -> None:
    """A database and a file store, each with the run and with one that came before it."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # it is in maintenance, and still about
    for store in ("database", "files"):
        with tempfile.TemporaryDirectory() as scratch:
            _log_to_mlflow(f"sqlite:///{scratch}/mlflow.db" if store == "database" else scratch)
            # Both name folders of this machine, which is not for others to see.
            if store == "database":
                database = sqlite3.connect(Path(scratch) / "mlflow.db")
                database.execute("UPDATE experiments SET artifact_location = ''")
                database.execute("UPDATE runs SET artifact_uri = ''")
                database.commit()
                database.execute("VACUUM")
                database.close()
                _pack(Path(scratch) / "mlflow.db", folder / "mlflow.db.gz")
            else:
                for run in Path(scratch).glob("*/*/metrics"):
                    home = folder / "mlruns" / "0" / run.parent.name
                    shutil.copytree(run, home / "metrics")
                    meta = (run.parent / "meta.yaml").read_text().splitlines(keepends=True)
                    kept = [line for line in meta if not line.startswith("artifact_uri")]
                    (home / "meta.yaml").write_text("".join(kept))


def _log_to_mlflow(address: str) -> None:
    tracking: Any = importlib.import_module("mlflow.tracking")
    entities: Any = importlib.import_module("mlflow.entities")
    client = tracking.MlflowClient(address)
    experiment = client.create_experiment("fixture", artifact_location="artifacts")
    for name, rows in (("before", FIRST[:3]), ("run", ROWS)):
        run = client.create_run(experiment, run_name=name, tags={"mlflow.user": "user"})
        for time, row in enumerate(rows, start=1_700_000_000_000):
            metrics = [
                entities.Metric(f"train/{name}", value, time, row.step)
                for name, value in row.values().items()
            ]
            client.log_batch(run.info.run_id, metrics=metrics)
        client.set_terminated(run.info.run_id)


def trackio(folder: Path) -> None:
    """A database with the run and with one that came before it."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRACKIO_DIR"] = scratch
        package: Any = importlib.import_module("trackio")
        for name, rows in (("before", FIRST[:3]), ("run", ROWS)):
            package.init(project="fixture", name=name, auto_log_gpu=False)
            for row in rows:
                signals = {f"train/{name}": value for name, value in row.values().items()}
                package.log({**signals, "note": "x", "deep": {"a": 1.5}}, step=row.step)
            package.finish()
        _pack(Path(scratch) / "fixture.db", folder / "fixture.db.gz")


def lightning(folder: Path) -> None:
    """Two versions of metrics.csv, as a run and its restart leave them."""
    loggers: Any = importlib.import_module("lightning.pytorch.loggers")
    for version, rows in enumerate((FIRST, SECOND)):
        logger = loggers.CSVLogger(folder, name="lightning_logs", version=version)
        for row in rows:
            logger.log_metrics({f"train_{name}": v for name, v in row.values().items()}, row.step)
            if row.step == 5:
                logger.log_metrics({"val_loss": 3.0, "epoch": 0}, row.step)
        logger.save()


def _pack(source: Path, target: Path) -> None:
    """Databases are mostly empty pages."""
    target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))


MAKERS: dict[str, Callable[[Path], None]] = {
    "tensorboard": tensorboard,
    "hf": hf,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
    "lightning": lightning,
}
"""Name of the fixture's folder to what fills it."""


def make_anew(name: str, folder: Path) -> None:
    """Write a fixture in a process of its own: the packages warn, and keep settings and threads."""
    done = forked.run("-m", "tests.readers.make_fixtures", "--into", folder, name, cwd=ROOT)
    assert not done.returncode, done.stderr


def main() -> None:
    """Write the fixtures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MAKERS), metavar="NAME")
    parser.add_argument("--into", type=Path, help="write there instead of among the fixtures")
    arguments = parser.parse_args()
    for name in arguments.names:
        folder = arguments.into or FIXTURES / name
        if not arguments.into:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        MAKERS[name](folder)


if __name__ == "__main__":
    main()
