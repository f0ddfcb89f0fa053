# ruff: noqa: E501  (the lines are as people paste them)
"""Texts as people paste them: the last line, quotes, prose, several ranks."""

import random

import pytest
from tests.readers.shapes import Write, values

from trimtab.core.run import Run
from trimtab.readers import read_log

STEPS = list(range(10, 410, 10))
LOSSES = [round(5 - step / 100, 4) for step in STEPS]
PAIRS = list(zip(STEPS, LOSSES, strict=True))


def read(write: Write, text: str, loss: str | None = None) -> Run:
    return read_log(write(text, "paste.txt"), loss=loss)


@pytest.mark.parametrize(
    "record",
    [
        "step {s} loss {x:.4f}",
        "step {s} loss {x:.4f} | 120 tok/s",
        "{{'loss': {x}, 'step': {s}}}",
        "| {s} | loss | {x:.4f} |",
    ],
)
def test_a_whole_last_line_needs_no_line_end(write: Write, record: str) -> None:
    lines = [record.format(s=s, x=x) for s, x in PAIRS]
    assert values(read(write, "\n".join(lines)).block, "loss") == LOSSES
    lines[-1] = record.format(s=STEPS[-1], x=float("nan"))
    assert len(read(write, "\n".join(lines)).block) == len(STEPS)


@pytest.mark.parametrize(
    "last",
    [
        "step 410 loss 2.",
        "step 410 loss 2.31",
        "step 410",
        "step 410 loss 2.3111 gr",
        "step 410 lo",
    ],
)
def test_half_a_last_line_is_left_out(write: Write, last: str) -> None:
    lines = [f"step {s} loss {x:.4f}" for s, x in PAIRS]
    run = read(write, "\n".join([*lines, last]))
    assert values(run.block, "loss") == LOSSES
    assert "1 line cut off in the middle is left out." in run.notes


def test_prose_at_the_end_is_not_half_a_record(write: Write) -> None:
    lines = [f"step {s} loss {x:.4f}" for s, x in PAIRS]
    run = read(write, "\n".join([*lines, "Any ideas? bf16, one GPU"]))
    assert values(run.block, "loss") == LOSSES
    assert not any("cut off" in note for note in run.notes)


HUGGING_FACE = "".join(
    f"{{'loss': {x}, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1}}\n"
    f" 10%|█         | {s}/1000 [00:10<10:00,  1.00it/s]\n"
    for s, x in PAIRS
)
TEXTS = {
    "an issue with fences, a bar and prose": (
        "My run breaks, what can I do?\n\n```\nUserWarning: torch.utils.checkpoint: use_reentrant is 1\n"
        f"{HUGGING_FACE}```\nbf16, A100. Thanks for 2 or 3 ideas!\n"
    ),
    "quoted in a chat": "".join(
        f"> iter {s}: loss {x:.4f}, time 12.34ms, mfu 23.45%\n" for s, x in PAIRS
    ),
    "a bar with returns": "".join(
        f"\rEpoch 0:  10%|█         | {s}/1000 [00:10<01:00, 9.1it/s, v_num=0, train_loss_step={x}]"
        for s, x in PAIRS
    ),
    "a table with tabs": "Step\tTraining Loss\tValidation Loss\n"
    + "".join(f"{s}\t{x:.6f}\t3.100000\n" for s, x in PAIRS),
    "a drawn table": "┌──────┬────────┐\n│ step │ loss   │\n├──────┼────────┤\n"
    + "".join(f"│ {s} │ {x:.4f} │\n" for s, x in PAIRS)
    + "└──────┴────────┘\n",
    "an evaluation that is not due": "".join(
        f"step {s} | train loss {x:.4f} | val loss {'3.1' if s % 50 == 0 else '-'} | norm 0.512 | dt 412.1ms\n"
        for s, x in PAIRS
    ),
    "VeOmni, each loss before and after the bar counts it": "".join(
        f"Epoch 1/5:   1%|▏         | {count}/999 [00:21<28:01, 11.06s/it, loss: {x}, grad_norm: 2.67]\n"
        for count, (_, x) in enumerate(PAIRS)
        for count in (count, count + 1)
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_pasted_texts(write: Write, name: str) -> None:
    run = read(write, TEXTS[name])
    assert values(run.block, "loss") == pytest.approx(LOSSES)
    wanted = list(range(1, 41)) if name.startswith("VeOmni") else STEPS
    assert run.block.step.tolist() == wanted
    if "issue" in name:
        assert run.facts.dtype == "bf16"


@pytest.mark.parametrize("record", ["Schritt: {s} Verlust: {x}", "step {s} | loss={x}; lr=0,001"])
def test_decimal_commas(write: Write, record: str) -> None:
    lines = [record.format(s=s, x=f"{x:.2f}".replace(".", ",")) for s, x in PAIRS]
    run = read(write, "\n".join(lines))
    assert values(run.block, "loss") == LOSSES
    assert run.block.step.tolist() == STEPS


def test_letters_for_digits_are_read_with_the_name_of_the_loss(write: Write) -> None:
    text = "".join(f"st3p {s} l0ss {x}\n" for s, x in PAIRS)
    assert values(read(write, text, loss="l0ss").block, "loss") == LOSSES


@pytest.mark.parametrize("prefix", ["[rank{r}]: ", "(WorkerDict pid={r}) ", "{r}: ", ""])
def test_several_ranks_at_one_step_are_one_record(write: Write, prefix: str) -> None:
    chance = random.Random(0)
    lines = []
    for rank in range(3):
        now = 0.0
        for step, loss in PAIRS:
            now += chance.random()
            name = prefix.format(r=100 + rank)
            lines.append((now, f"{name}step {step} loss {loss:.4f} lr 1e-4\n"))
    run = read(write, "".join(line for _, line in sorted(lines)))
    assert run.block.step.tolist() == STEPS
    assert values(run.block, "loss") == LOSSES
    assert any("80 records of further ranks are left out" in note for note in run.notes)


def test_restarts_are_not_taken_for_ranks(write: Write) -> None:
    steps = [*range(100), *range(80, 100), *range(80, 100), *range(80, 120)]
    run = read(write, "".join(f"step {s} loss {5 - s / 100:.3f}\n" for s in steps))
    assert len(run.block) == len(steps)
