"""The general reader: what any trainer prints."""

import re
import time
from contextlib import suppress

import numpy as np
import pytest
from tests.kit.printed import BY_STEP, LOSSES, MULTIPLES, NOT_BY_PRINTED_STEP, STEPS
from tests.kit.printed_more import MORE_BY_STEP, UNCLEAR
from tests.readers.shapes import Write, assert_reads

from trimtab.core.errors import NoUsableLoss, UnreadableLog
from trimtab.core.run import Run
from trimtab.core.signals import Quality
from trimtab.readers import read_log
from trimtab.readers.general import shapes


def losses(run: Run) -> tuple[list[int], list[float]]:
    """Return the steps and the values of the loss."""
    column = run.block.column("loss")
    return run.block.step[column.present].tolist(), column.values[column.present].tolist()


@pytest.mark.parametrize("name", BY_STEP)
def test_what_trainers_print(write: Write, name: str) -> None:
    lines = "".join(BY_STEP[name](step, loss) for step, loss in zip(STEPS, LOSSES, strict=True))
    run = read_log(write(f"starting the run\n{lines}\n", "train.log"))
    steps = [step * MULTIPLES.get(name, 1) for step in STEPS]
    assert losses(run) == (list(range(6)) if name in NOT_BY_PRINTED_STEP else steps, LOSSES)
    assert any(note.startswith("Read as: ") for note in run.notes) or run.format != "text"


@pytest.mark.parametrize("name", MORE_BY_STEP)
def test_what_more_trainers_print(write: Write, name: str) -> None:
    lines = "".join(
        MORE_BY_STEP[name](step, loss) for step, loss in zip(STEPS, LOSSES, strict=True)
    )
    steps, values = losses(read_log(write(f"starting the run\n{lines}\n", "train.log")))
    assert steps == STEPS
    assert values == pytest.approx(LOSSES, rel=6e-3)  # some print two digits


@pytest.mark.parametrize("name", UNCLEAR)
def test_several_losses_or_none_are_not_guessed(write: Write, name: str) -> None:
    lines = "".join(UNCLEAR[name](step, loss) for step, loss in zip(STEPS, LOSSES, strict=True))
    with pytest.raises(UnreadableLog, match="--loss"):
        read_log(write(f"starting the run\n{lines}\n", "train.log"))


PROSE = (
    "You should probably TRAIN this model on a down-stream task to be able to use it.\n"
    "The run was started with 8 ranks, and we expect a result in 3 days at the latest.\n"
)


def test_one_sentence_with_a_loss_is_no_log(write: Write) -> None:
    text = "Nobody could say why: at step 650 the loss was 2.5, and by Monday it was back.\n"
    with pytest.raises(UnreadableLog, match="sentence; name the loss with --loss"):
        read_log(write(PROSE + text, "notes.txt"))


@pytest.mark.parametrize(
    "record",
    [
        "Epoch 1 done in 12.3 s, mean loss 0.5 (best so far)",
        "2025-03-14 09:26:53,561 INFO root trainer.py:33 - training epoch 1 finished, loss: 0.5",
        "step 100 | loss 0.5 | lr 1e-3",
    ],
)
def test_a_single_record_among_sentences_is_read(write: Write, record: str) -> None:
    assert losses(read_log(write(f"{PROSE}{record}\n", "train.log")))[1] == [0.5]


EPOCHS = [(epoch, batch) for epoch in range(3) for batch in (1, 2)]
TEXTS = {
    "evaluations under a headline are no records": (
        "".join(
            f"Epoch {epoch}\nTraining...\nbatch 1 loss {9 - epoch}.5\nbatch 2 loss {9 - epoch}.25\n"
            f"Validating...\nbatch 1 loss 7.0\n"
            for epoch in range(3)
        ),
        "loss=9.5 9.25 8.5 8.25 7.5 7.25",
    ),
    "evaluations are rows of their own": (
        "step 1: loss 3.0\nstep 2: loss 2.5\nval loss 2.75\nstep 3: loss 2.25\n",
        "step=1 2 2 3; loss=3 2.5 - 2.25; eval_loss=- - 2.75 -",
    ),
    "signals beside the loss": (
        "it 1: loss nan gnorm inf lr 1e-3\nit 2: loss 2.5 gnorm 1.5 lr 2e-3\n",
        "loss=nan 2.5; grad_norm=inf 1.5; lr=0.001 0.002",
    ),
    "a scale of powers of two that is large": (
        "step 1 loss 2.5 scale 65536.0\nstep 2 loss 2.25 scale 65536.0\n",
        "loss_scale=65536 65536",
    ),
    "a scale that is small and does not change": (
        "step 1 loss 2.5 scale 4.0\nstep 2 loss 2.25 scale 4.0\n",
        "scale=4 4",
    ),
    "steps that start again in each epoch": (
        "".join(f"Epoch {epoch}, batch {10 * batch}, loss 5.{batch}\n" for epoch, batch in EPOCHS),
        "step=10 20 30 40 50 60; attempt=0 0 0 0 0 0",
    ),
    "a restart stays one": (
        "".join(f"step {step} loss {9 - step}.5\n" for step in (1, 2, 3, 2, 3, 4)),
        "attempt=0 0 0 1 1 1",
    ),
    "ranks that print in turns": (
        "[rank0]: step 1 loss 2.75\n[rank1]: step 1 loss 3.75\n"
        "[rank0]: step 2 loss 2.5\n[rank1]: step 2 loss 3.5\n",
        "step=1 2; loss=2.75 2.5",
    ),
    "a bar counts each step once": (
        "".join(
            f"\r 1%|# | {n // 2}/9 [00:0{n}<00:01, 1it/s, loss={9 - n}.5]" for n in range(2, 8)
        ),
        "step=1 2 3; loss=6.5 4.5 2.5",
    ),
    "epoch summaries are no records": (
        "".join(
            f"epoch {epoch} step {2 * epoch + batch} loss {9 - epoch}.{batch}\n"
            + (f"epoch {epoch} step {2 * epoch + 2} loss 7.0 elapsed 9s\n" if batch == 2 else "")
            for epoch, batch in EPOCHS
        ),
        "step=1 2 3 4 5 6; loss=9.1 9.2 8.1 8.2 7.1 7.2",
    ),
    "a cut off last line": ("step 1 loss 2.5\nstep 2 loss 2.25\nstep 3 loss 2.1", "step=1 2"),
    "a recognised format without records": (
        '{"note": "a header"}\nstep 1 loss 2.5\nstep 2 loss 2.25\n',
        "step=1 2",
    ),
    "zeros of HF beside a NaN norm": (
        "{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.2}\n",
        "loss=2.5 nan",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_read(write: Write, name: str) -> None:
    text, columns = TEXTS[name]
    run = read_log(write(text, "train.log"))
    assert_reads(run, columns, ...)
    assert run.block.quality("loss") is (Quality.INFERRED if "HF" in name else Quality.RAW)


def test_an_evaluation_without_a_step_stands_beside_the_record_before_it(write: Write) -> None:
    lines = [f"{{'loss': {2 - i / 50}, 'grad_norm': 0.5, 'epoch': {i / 50}}}" for i in range(100)]
    for at in (80, 40):
        lines.insert(at, f"{{'eval_loss': {1 + at / 80}, 'eval_runtime': 3.1, 'epoch': {at / 50}}}")
    run = read_log(write("\n".join(lines)))
    held_out = run.block.column("eval_loss")
    assert len(run.block) == 100
    assert np.flatnonzero(held_out.present).tolist() == [39, 79]
    assert held_out.values[held_out.present].tolist() == [1.5, 2.0]


def test_running_means_are_marked(write: Write) -> None:
    run = read_log(write("step 1 avg_loss 3.5\nstep 2 avg_loss 3.25\n"))
    assert run.block.quality("loss") == Quality.SMOOTHED


def test_a_loss_scale_of_one_is_no_scaler(write: Write) -> None:
    run = read_log(write("step,loss,loss_scale\n1,2.5,1.0\n2,2.25,1.0\n"))
    assert "loss_scale" not in run.block.columns
    assert any("nothing is scaled" in note for note in run.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "step 1 d_loss 1.5 g_loss 2.5\nstep 2 d_loss 1.5 g_loss 2.5\n",
            "may be the loss, and none is .*; name the loss with --loss",
        ),
        (
            "".join(
                f"[Epoch 0/9] [Batch {b}/9] [D loss: 0.{b}] [G loss: 1.{b}]\n" for b in range(9)
            ),
            "any of 'D loss', 'G loss' may be the loss",
        ),
        ("step 1 val_loss 1.5\nstep 2 val_loss 1.25\n", "no number in it is called a loss"),
        (
            "step 1 accuracy 0.5\nstep 2 accuracy 0.75\n",
            "line: 'step 1 accuracy 0.5', 2 like it; its columns: 'step', 'acc",
        ),
        ("1 9.5 8.5\n2 8.5 7.5\n3 7.5 6.5\n4 6.5 5.5\n5 5.5 4.5\n", "columns have no names"),
    ],
)
def test_what_is_not_clear_is_refused(write: Write, text: str, message: str) -> None:
    with pytest.raises(UnreadableLog, match=message):
        read_log(write(text, "train.log"))


def test_the_user_names_the_columns(write: Write) -> None:
    text = "i 1 step 7 loss 1.5 g_loss 2.5\ni 2 step 7 loss 1.25 g_loss 2.0\n"
    run = read_log(write(text, "train.log"), loss="g_loss", step="i")
    assert losses(run) == ([1, 2], [2.5, 2.0])
    assert list(run.names)[-2:] == ["step (other)", "loss (other)"]
    table = "step,loss,other\n1,2.5,7.5\n2,2.25,7.0\n"
    assert losses(read_log(write(table), loss="other")) == ([1, 2], [7.5, 7.0])
    with pytest.raises(NoUsableLoss, match=re.escape("no numbers under 'mine'")):
        read_log(write(table), loss="mine")


def test_long_lines_take_no_time(write: Write) -> None:
    for piece in ("1,111", "a.", "1:", "\u2003", "'", "(", "| ", "{'a': ", "1/", "loss "):
        text = f"{piece * (30_000 // len(piece))} loss 2.5\n" * 3
        start = time.process_time()
        with suppress(UnreadableLog, NoUsableLoss):
            read_log(write(text, "train.log"))
        assert time.process_time() - start < 5


def test_noise_is_passed_over_and_changes_nothing(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"    all-grads-sync ....: ({n % 7}.12, {n % 9}.34)\n" * 9 + f"step {n} loss {9 - n / 99}\n"
        for n in range(99)
    ]
    path = write("".join(lines), "train.log")
    whole = losses(read_log(path))
    monkeypatch.setattr("trimtab.readers.log_file.BLOCK_BYTES", 4_000)
    monkeypatch.setattr(shapes, "NOISE_LINES", 20)
    assert losses(read_log(path)) == whole
    assert len(whole[0]) == 99


def test_patterns_of_frequent_lines_change_nothing(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"2026-01-01 10:00:0{n % 10}.{n:03d} iter {n:5d}/9999 | loss: "
        f"{'nan' if n % 97 == 5 else 9 - n / 100:>8} ({n:,} tokens) | lr {n * 1e-6:.3e} | "
        f"{n % 13}.{n % 7}ms{' skipped' if n % 41 == 3 else ''}\n"
        for n in range(900)
    ]
    path = write("".join(lines), "train.log")
    fast = read_log(path).block
    monkeypatch.setattr(shapes, "FREQUENT", 1 << 60)
    slow = read_log(path).block
    assert len(fast) == 900
    assert fast.step.tolist() == slow.step.tolist()
    assert fast.columns.keys() == slow.columns.keys()
    for name in fast.columns:
        assert np.array_equal(fast.column(name).values, slow.column(name).values, equal_nan=True)
