"""The callback in real Hugging Face trainers: true numbers, the same bits, checkpoints."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.kit.cases import some_of
from tests.kit.hf import Sequences, TinyForCausalLM, bits, make_trainer, use_fp16
from tests.kit.observing import with_observer  # noqa: F401
from tests.kit.tiny import EVERY_10, journal_of
from transformers import EarlyStoppingCallback, TrainerCallback
from typer.testing import CliRunner

import trimtab
from trimtab.cli.main import app
from trimtab.core.config import Config
from trimtab.core.token_losses import EDGES, NAMES
from trimtab.integrations.hf import TrimtabCallback, last_good_checkpoint
from trimtab.integrations.trainer_adapter import GUARD_FILE
from trimtab.live.arithmetic import device_path
from trimtab.selftest.promises import READS, Counting

SOON = Config().override({"recover.snapshot_every": 4})

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]


class At(TrainerCallback):  # type: ignore[misc]
    """Does something once, at the end of a step; remembers the steps and their epochs."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self._step, self._act = step, act
        self.steps: list[int] = []
        self.epochs: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        self.steps.append(state.global_step)
        self.epochs.append(state.epoch)
        if state.global_step == self._step and len(self.steps) == self._step:
            self._act()


def undo(callback: TrimtabCallback) -> None:
    assert callback.guard is not None
    callback.guard.undo()


def undone_in(folder: Path) -> list[int]:
    """Return the updates that each undo has lost."""
    events = journal_of(folder).events
    return [event.facts["updates_lost"] for event in events if event.kind == "undo"]


def logged(trainer: Any, name: str) -> list[float]:
    return [row[name] for row in trainer.state.log_history if name in row]


def prepared(folder: Path, callback: Any, precision: str = "fp32", **arguments: Any) -> Any:
    trainer = make_trainer(folder, callback, bf16=precision == "bf16", **arguments)
    if precision == "fp16":
        use_fp16(trainer.accelerator, 2.0**10)
    return trainer


@pytest.mark.parametrize(
    ("precision", "accumulate"), some_of([("fp32", 1), ("bf16", 4), ("fp16", 4)], ("fp16", 4))
)
def test_observing_has_the_same_bits_and_the_true_numbers(
    precision: str, accumulate: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": accumulate, "shuffle": True}
    plain = prepared(tmp_path / "plain", None, precision, **options)
    plain.train()
    callback = TrimtabCallback(config=EVERY_10)
    watched = prepared(tmp_path / "watched", callback, precision, **options)
    watched.train()

    assert bits(watched) == bits(plain)
    assert logged(watched, "loss") == logged(plain, "loss")
    block = journal_of(tmp_path / "watched")  # the Trainer's output_dir
    assert list(block.step) == [row["step"] for row in plain.state.log_history[:12]]
    np.testing.assert_allclose(block.column("loss").values, logged(plain, "loss"), rtol=1e-5)
    np.testing.assert_allclose(
        block.column("grad_norm").values, logged(plain, "grad_norm"), rtol=1e-5
    )
    assert block.column("fingerprint").recorded
    assert block.data_position[1] == accumulate
    shares = np.array([block.column(name).values[[0, 10]] for name in NAMES])
    np.testing.assert_allclose(shares.sum(axis=0), 1.0, rtol=1e-5)
    means = (np.array(EDGES) * 2**0.25) @ shares  # of tokens, from the logits
    np.testing.assert_allclose(means, block.column("loss").values[[0, 10]], rtol=0.2)


def test_labels_that_the_trainer_counts_wrong_are_counted_right(tmp_path: Path) -> None:
    class Unknown(TinyForCausalLM):
        """The Trainer goes by the name, and counts the first token of each sequence too."""

    trainer = make_trainer(tmp_path, TrimtabCallback(), model=Unknown(), max_steps=2)
    assert not trainer._loss_shifts_labels
    items = Sequences(4).items
    trainer.train()
    tokens = [int((item["labels"][1:] != -100).sum()) for item in items]
    block = journal_of(tmp_path)
    assert list(block.column("tokens").values) == [sum(tokens[:2]), sum(tokens[2:])]
    with torch.no_grad():
        model = Unknown().eval()
        losses = [model(**{k: v[None] for k, v in item.items()}).loss.item() for item in items[:2]]
    expected = np.average(losses, weights=tokens[:2])
    np.testing.assert_allclose(block.column("loss").values[0], expected, rtol=0.01)  # dropout


@pytest.mark.parametrize("mode", [pytest.param("observe", marks=pytest.mark.slow), "protect"])
def test_no_host_read_is_added(mode: str, tmp_path: Path) -> None:
    def count(callback: Any) -> int:
        counting = Counting()

        class Count(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, args: Any, state: Any, *unused: Any, **more: Any) -> None:
                if state.global_step == 4:  # optimizer state and buffers exist
                    counting.__enter__()  # type: ignore[no-untyped-call]

            def on_step_end(self, args: Any, state: Any, *unused: Any, **more: Any) -> None:
                if state.global_step == 12:  # after telemetry and token losses
                    counting.__exit__(None, None, None)  # type: ignore[no-untyped-call]

        trainer = make_trainer(tmp_path / str(callback is None), callback)
        trainer.add_callback(Count())
        trainer.train()
        return sum(counting.counts[name] for name in READS)

    with device_path():
        assert count(TrimtabCallback(mode=mode)) == count(None)


@pytest.mark.usefixtures("with_observer")
@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_protected_run_holds_a_batch_that_is_not_finite(
    accumulate: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = 10 * accumulate  # in the sixth step
    data = Sequences(96, marked=(at,))
    seen: dict[int, str] = {}

    class Look(TrainerCallback):  # type: ignore[misc]
        def on_optimizer_step(self, args: Any, state: Any, *unused: Any, **more: Any) -> None:
            seen[state.global_step + 1] = bits_of_state(trainer)

    trainer = make_trainer(
        tmp_path,
        TrimtabCallback(mode="protect"),
        data=data,
        gradient_accumulation_steps=accumulate,
        save_strategy="steps",
        save_steps=12,
    )
    trainer.add_callback(Look())
    with caplog.at_level(logging.WARNING, "trimtab"):
        trainer.train()

    held = [step for step in range(2, 13) if seen[step] == seen[step - 1]]
    assert held == [6]
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    loss = journal_of(tmp_path).column("loss").values
    assert list(np.flatnonzero(np.isnan(loss))) == [5]
    assert np.isfinite(logged(trainer, "loss")).all()  # what the Trainer shows in its place
    assert caplog.text.count("logging_nan_inf_filter") == 1
    assert "step 6: the loss is not finite" in caplog.text
    caplog.clear()
    again = make_trainer(tmp_path, TrimtabCallback(mode="protect"), data=data, max_steps=13)
    with caplog.at_level(logging.INFO, "trimtab"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert "the loss is not finite" not in caplog.text  # that was said by the first launch
    assert ": 1 step recorded, " in caplog.text


def bits_of_state(trainer: Any) -> str:
    """Parameters and moments, without what moves in a discarded step too."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    parts = [p.detach().numpy().tobytes() for p in trainer.model.parameters()]
    for state in optimizer.state.values():
        parts += [torch.as_tensor(value).numpy().tobytes() for value in state.values()]
    return str(hash(tuple(parts)))


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"max_steps": 20}, marks=pytest.mark.slow),
        {"num_train_epochs": 2, "max_steps": -1, "data": Sequences(38)},
    ],
)
def test_after_an_undo_everything_else_of_the_trainer_goes_on(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "data": Sequences(40),
        "gradient_accumulation_steps": 2,
        "shuffle": True,
        "optim": "adamw_torch_fused",
        "eval_strategy": "steps",
        "eval_steps": 3,
        **arguments,
    }

    def train(name: str, callback: Any, act: Callable[[], None]) -> tuple[Any, At, Any]:
        trainer = make_trainer(tmp_path / name, callback, **options)
        patience = EarlyStoppingCallback(early_stopping_patience=100)
        at = At(11, act)
        for other in (patience, at):
            trainer.add_callback(other)
        trainer.args.metric_for_best_model = "eval_loss"
        trainer.train()
        return trainer, at, patience

    plain, expected, _ = train("plain", None, lambda: None)
    callback = TrimtabCallback(mode="recover", config=SOON)
    watched, found, patience = train("watched", callback, lambda: undo(callback))

    (lost,) = undone_in(tmp_path / "watched")
    assert 1 <= lost <= 12
    assert bits(watched) != bits(plain)
    assert found.steps == expected.steps
    assert found.epochs == expected.epochs
    assert logged(watched, "learning_rate") == logged(plain, "learning_rate")
    assert logged(watched, "loss")[:11] == logged(plain, "loss")[:11]
    assert len(logged(watched, "eval_loss")) == len(logged(plain, "eval_loss"))
    assert patience.early_stopping_patience_counter <= 6
    block = journal_of(tmp_path / "watched")
    assert list(block.step) == list(range(1, 21))
    assert list(np.diff(block.data_position)) == [
        1 if step == 10 and "data" in arguments else 2 for step in range(1, 20)
    ]


def test_the_last_proven_checkpoint_survives_and_a_resume_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1}
    whole = make_trainer(tmp_path / "whole", **options)
    whole.train()
    first = make_trainer(tmp_path / "run", TrimtabCallback(mode="protect"), **options)
    first.add_callback(At(9, lambda: stop(first)))
    first.train()
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-8"]
    entries = trimtab.Checkpoints(run_dir=tmp_path / "run").entries
    assert [entry.step for entry in entries] == [5, 9]  # the next step; both are still there

    found = last_good_checkpoint(tmp_path / "run")
    assert found is not None
    assert (Path(found) / GUARD_FILE).exists()
    with caplog.at_level(logging.WARNING, "trimtab"):
        second = make_trainer(tmp_path / "run", TrimtabCallback(mode="protect"), **options)
        second.train(resume_from_checkpoint=found)
    assert "resume" not in caplog.text  # the audit has nothing to say
    assert second.state.global_step == 12
    np.testing.assert_allclose(logged(second, "loss")[-4:], logged(whole, "loss")[-4:], rtol=1e-4)
    block = journal_of(tmp_path / "run")
    assert list(block.step) == [*range(1, 10), *range(9, 13)]
    assert list(block.data_position) == [*range(9), *range(8, 12)]


def stop(trainer: Any) -> None:
    trainer.control.should_training_stop = True


def test_training_again_after_an_exception_records_once_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = TrimtabCallback(mode="protect")
    trainer = make_trainer(tmp_path, callback, max_steps=6)
    before = set(vars(trainer)), set(vars(trainer.accelerator))

    def fail() -> None:
        raise RuntimeError("out of memory")

    trainer.add_callback(at := At(3, fail))
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    trainer.remove_callback(at)
    trainer.train()
    assert callback.guard is None
    assert "resume" not in caplog.text  # a run that begins again at its first step is no resume
    assert list(journal_of(tmp_path).step) == [1, 2, 3, 1, 2, 3, 4, 5, 6]
    assert {"training_step", "get_batch_samples"} & (set(vars(trainer)) - before[0]) == set()
    assert set(vars(trainer.accelerator)) == before[1]


def test_evaluations_are_recorded_and_belong_to_no_step(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, TrimtabCallback(), eval_strategy="steps", eval_steps=4)
    trainer.train()
    block = journal_of(tmp_path)
    assert len(block) == 12
    assert [event.kind for event in block.events].count("evaluation") == 3
    assert block.column("eval_loss").recorded


def test_a_trainer_that_makes_its_own_batches_recovers_too(tmp_path: Path) -> None:
    class Generates(transformers.Trainer):  # type: ignore[misc]
        def _prepare_inputs(self, inputs: Any) -> Any:
            calls.append(inputs)
            return super()._prepare_inputs(inputs)

    calls: list[Any] = []
    callback = TrimtabCallback(mode="recover", config=SOON)
    trainer = make_trainer(tmp_path, callback, kind=Generates)
    trainer.add_callback(At(8, lambda: undo(callback)))
    trainer.train()
    assert len(undone_in(tmp_path)) == 1
    assert len(calls) == 12  # nothing is generated for experiments


def test_a_bug_at_the_start_leaves_the_trainer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*unused: Any, **more: Any) -> None:
        raise AttributeError("a Trainer of the future")

    monkeypatch.setattr("trimtab.integrations.hf.Checkpoints", fail)
    plain = make_trainer(tmp_path / "plain", max_steps=3)
    plain.train()
    trainer = make_trainer(tmp_path / "run", TrimtabCallback(mode="observe"), max_steps=3)
    trainer.train()
    assert bits(trainer) == bits(plain)
    assert "trimtab could not start and steps aside" in caplog.text


def test_a_rollback_is_taken_by_last_good_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4}
    make_trainer(tmp_path, TrimtabCallback(mode="protect"), **options).train()
    request = ["rollback", str(tmp_path), "--to", "5", "--skip", "6:8", "--lr-factor", "0.5"]
    assert CliRunner().invoke(app, [*request, "--yes"]).exit_code == 0
    found = last_good_checkpoint(tmp_path)
    assert found is not None
    with caplog.at_level(logging.WARNING, "trimtab"):
        trainer = make_trainer(tmp_path, TrimtabCallback(mode="protect"), **options)
        trainer.train(resume_from_checkpoint=found)
    assert "resume" not in caplog.text
    again = journal_of(tmp_path)[12:]
    assert again.step.tolist() == list(range(5, 13))
    assert again.step[again.column("discarded").values == 1.0].tolist() == [6, 7]
    planned = journal_of(tmp_path)[4:12].column("lr").values
    assert again.column("lr").values.tolist() == (planned / 2).tolist()
    assert logged(trainer, "learning_rate")[-1] == planned[-1]  # as scheduled: the Trainer's own
