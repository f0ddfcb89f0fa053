"""A Hugging Face Trainer that recovers by itself: the ladder decides, the Trainer goes back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.hf import Sequences, bits, make_trainer
from tests.live.recover.test_controller import acts, events
from transformers import TrainerCallback

from trimtab.core.config import Config
from trimtab.core.errors import RunStopped
from trimtab.integrations.hf import TrimtabCallback, last_good_checkpoint
from trimtab.journal import RunDirectory
from trimtab.journal.exit_request import ExitRequest, RunExit

STEPS, ONSET = 150, 120

pytestmark = pytest.mark.slow


class Disturb(TrainerCallback):  # type: ignore[misc]
    """Damages the run once, when this many steps were done."""

    def __init__(self, trainer: Any, kind: str) -> None:
        self._trainer, self._kind = trainer, kind
        self._ticks = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self._ticks += 1
        if self._ticks == ONSET and self._kind == "flip":
            with torch.no_grad():
                self._trainer.model.lm_head.weight[3, 3] = 1e30


def train(
    folder: Path,
    kind: str,
    marked: tuple[int, ...] = (),
    config: Config | None = None,
    resume: str | None = None,
    **arguments: Any,
) -> Any:
    callback = TrimtabCallback(folder / "run", mode="recover", config=config)
    trainer = make_trainer(
        folder / "out",
        callback,
        data=Sequences(2400, marked),
        max_steps=STEPS,
        learning_rate=3e-3,
        per_device_train_batch_size=8,
        optim="adamw_torch_fused",
        logging_steps=10,
        **arguments,
    )
    trainer.add_callback(Disturb(trainer, kind))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_a_flipped_weight_is_restored_to_the_same_bits(tmp_path: Path) -> None:
    clean = train(tmp_path / "clean", "none")
    assert acts(tmp_path / "clean" / "run") == []
    damaged = train(tmp_path / "damaged", "flip")
    assert acts(tmp_path / "damaged" / "run") == ["restore"]
    assert bits(damaged) == bits(clean)
    (check,) = events(tmp_path / "damaged" / "run", "check")
    assert check.facts["helped"] is True
    assert damaged.state.global_step == STEPS


def test_a_stretch_of_batches_that_are_not_finite_is_kept_out(tmp_path: Path) -> None:
    marked = tuple(range(8 * ONSET, 8 * (ONSET + 6), 8))  # one sequence of each of six batches
    trainer = train(tmp_path, "none", marked)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    (incident,) = {event.facts.get("number") for event in events(tmp_path / "run", "incident")}
    assert incident == 1
    assert acts(tmp_path / "run") == []  # discarding them was enough
    assert trainer.state.global_step == STEPS


def test_without_memory_for_snapshots_a_relaunch_continues_from_the_last_good_checkpoint(
    tmp_path: Path,
) -> None:
    config = Config().override({"recover.memory_share": 1e-9, "ladder.max_relaunches": 1})
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 50, "save_total_limit": 1}
    clean = train(tmp_path / "clean", "none", config=config, **options)
    damaged = tmp_path / "damaged"
    with pytest.raises(RunStopped):
        train(damaged, "flip", config=config, **options)
    request = ExitRequest.read(RunDirectory(damaged / "run").home)
    assert request is not None
    assert request.code is RunExit.RELAUNCH

    found = last_good_checkpoint(damaged / "run")
    assert found is not None
    assert Path(found).name == "step-00000101"
    trainer = train(damaged, "none", config=config, resume=found, **options)
    assert trainer.state.global_step == STEPS
    assert bits(trainer) == bits(clean)
