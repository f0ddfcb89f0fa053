"""The Hugging Face Trainer and an Accelerator with a DeepSpeed configuration, and their report."""

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit.deepspeed_engines import prepare, weights_of
from tests.kit.hf import Sequences, TinyForCausalLM, make_trainer
from tests.kit.launch import run_ranks
from tests.kit.tiny import journal_of
from torch.utils.data import DataLoader

import trimtab

SLOW = pytest.mark.slow

MARKED, BAD_STEP = 21, 6
"""The sequence without a finite loss, and the step that it is in, counted from 1."""


def settings_of(stage: int) -> dict[str, Any]:
    """Return a configuration as users of a trainer write it."""
    return {
        "zero_optimization": {"stage": stage},
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def set_as_launched(rank: int, ranks: int, port: int) -> None:
    """Set what a launcher tells its processes: trainers meet by themselves."""
    prepare()
    os.environ |= {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def hf_runs(
    rank: int, ranks: int, port: int, folder: Path, stage: int, meeting: Path
) -> dict[str, Any]:
    set_as_launched(rank, ranks, port)
    from trimtab.integrations.hf import TrimtabCallback

    found = {}
    for mode in (None, "observe", "protect"):
        callback = mode and TrimtabCallback(mode=mode, observer=False)
        trainer = make_trainer(
            folder / str(mode),
            callback,
            data=Sequences(96, marked=(MARKED,)),
            use_cpu=False,  # else no DeepSpeed; there is no other device
            gradient_accumulation_steps=2,
            logging_nan_inf_filter=False,
            deepspeed=settings_of(stage),
        )
        trainer.train()
        logged = [(row["loss"], row["grad_norm"]) for row in trainer.state.log_history[:-1]]
        skipped = trainer.model_wrapped.skipped_steps
        found[str(mode)] = (weights_of(trainer.model_wrapped), logged, skipped)
    return found


@pytest.mark.parametrize(
    ("stage", "ranks"), [(3, 2), pytest.param(2, 1, marks=SLOW), pytest.param(2, 2, marks=SLOW)]
)
def test_the_hugging_face_trainer(stage: int, ranks: int, tmp_path: Path) -> None:
    for found in run_ranks(
        hf_runs, ranks, ranks, free_port(), tmp_path, stage, deadline=120, join=False
    ):
        assert found["None"][0] == found["observe"][0] == found["protect"][0]
        assert repr(found["None"]) == repr(found["observe"])  # NaN in the log equals no NaN
        assert [skipped for _, _, skipped in found.values()] == [1, 1, 1]
    journal = journal_of(tmp_path / "observe")
    assert list(journal.step) == list(range(1, 13))
    # Once it was NaN, the Trainer's own running sum of losses stays so.
    for name, logged in zip(("loss", "grad_norm"), np.transpose(found["observe"][1]), strict=True):
        is_finite = np.isfinite(logged)
        recorded = journal.column(name).values
        assert is_finite.sum() >= BAD_STEP - 1
        assert np.allclose(recorded[is_finite], logged[is_finite], rtol=1e-4)
    assert np.flatnonzero(np.isnan(journal.column("loss").values)).tolist() == [BAD_STEP - 1]
    report = trimtab.diagnose(tmp_path / "observe")
    assert [found.incident.onset.step for found in report.incidents] == [BAD_STEP]


def accelerate_runs(
    rank: int, port: int, folder: Path, stage: int, meeting: Path
) -> dict[str, Any]:
    set_as_launched(rank, 1, port)
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import AcceleratorState

    from trimtab.integrations.accelerate import watch

    found = {}
    for mode in (None, "observe", "protect"):
        AcceleratorState._reset_state()
        plugin = DeepSpeedPlugin(
            hf_ds_config={
                **settings_of(stage),
                "gradient_accumulation_steps": 2,
                "bf16": {"enabled": True},
            }
        )
        accelerator = Accelerator(deepspeed_plugin=plugin)
        model = TinyForCausalLM()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader: Any = DataLoader(Sequences(48, marked=(MARKED,)), batch_size=2)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        with watch(
            accelerator,
            model,
            optimizer,
            run_dir=folder / str(mode),
            observer=False,
            enabled=mode is not None,
            mode=mode or "observe",
        ) as guard:
            for batch in loader:
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    guard.record(loss=loss, tokens=batch["labels"].ne(-100).sum())
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
        found[str(mode)] = (weights_of(model), model.skipped_steps)
    return found


def test_an_accelerator(tmp_path: Path) -> None:
    (found,) = run_ranks(accelerate_runs, 1, free_port(), tmp_path, 2, deadline=120, join=False)
    assert found["None"] == found["observe"] == found["protect"]
    assert found["None"][1] == 1
    journal = journal_of(tmp_path / "protect")
    assert list(journal.step) == list(range(12))
    assert journal.column("tokens").present.all()
    assert np.flatnonzero(np.isnan(journal.column("loss").values)).tolist() == [BAD_STEP - 1]
    report = trimtab.diagnose(tmp_path / "protect")
    assert [found.incident.onset.step for found in report.incidents] == [BAD_STEP - 1]


def lightning_runs(
    rank: int, port: int, folder: Path, stage: int, meeting: Path
) -> dict[str, tuple[dict[str, Any], int]]:
    set_as_launched(rank, 1, port)
    import lightning
    from lightning.pytorch.accelerators import CPUAccelerator
    from lightning.pytorch.strategies import DeepSpeedStrategy, deepspeed
    from tests.kit.lightning import Module

    from trimtab.integrations.lightning import TrimtabCallback

    # Lightning lets DeepSpeed on CUDA alone; nothing else of the strategy needs it.
    vars(deepspeed)["CUDAAccelerator"] = CPUAccelerator
    vars(deepspeed)["_validate_device_index_selection"] = lambda devices: None

    class Strategy(DeepSpeedStrategy):  # type: ignore[misc]
        root_device = torch.device("cpu", 0)

    settings = settings_of(stage)
    del settings["gradient_accumulation_steps"]  # Lightning sets it
    found = {}
    for mode in (None, "observe", "protect"):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            strategy=Strategy(config={**settings}, process_group_backend="gloo"),
            max_steps=12,
            accumulate_grad_batches=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=folder,
            callbacks=[TrimtabCallback(folder / str(mode), mode=mode, observer=False)]
            if mode
            else [],
        )
        drawn = torch.Generator().manual_seed(1)
        tokens: Any = torch.randint(0, 32, (48, 9), generator=drawn)
        trainer.fit(Module(nan_at=2 * BAD_STEP - 1), DataLoader(tokens, batch_size=2))
        engine = trainer.strategy.model
        found[str(mode)] = (weights_of(engine), engine.skipped_steps)
    return found


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    (found,) = run_ranks(lightning_runs, 1, free_port(), tmp_path, 2, deadline=120, join=False)
    assert found["None"] == found["observe"] == found["protect"]
    assert found["None"][1] == 1
    journal = journal_of(tmp_path / "protect")
    assert list(journal.step) == list(range(12))
    assert np.flatnonzero(np.isnan(journal.column("loss").values)).tolist() == [BAD_STEP - 1]
    assert journal.column("grad_norm").present.all()
