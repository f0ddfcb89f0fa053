# ruff: noqa: RUF001  (the letters are those of the languages)
"""Short texts of loops that no trainer wrote: spellings, languages, headlines, closing lines."""

import math

import pytest
from tests.readers.shapes import Write, assert_reads, values

from trimtab.core.errors import LogError
from trimtab.readers import read_log

LOSSES = [2.31, 1.92, 1.71, 1.55, 1.43, 0.98]


def lines(record: str) -> str:
    return "".join(
        record.format(n=n, s=10 * n, x=x, v=round(x + 0.2, 2), c=f"{x:.3f}".replace(".", ","))
        for n, x in enumerate(LOSSES, 1)
    )


@pytest.mark.parametrize(
    "record",
    [
        "Step #{n}: loss {x}\n",
        "#0000{n}: loss={x} ler=0.5\n",
        "epoch = {n}\nloss = {x}f0\n",
        "epoch {n} loss {x}D+00\n",
        "Schritt {n}: Verlust {c}, Genauigkeit 0,41\n",
        "| {n} | {c} | 2,500 |\n",
        "Epoche {n}/6, Trainingsverlust: {x}, Validierungsverlust: {v}\n",
        "Adım {n}/6 | Kayıp: {x} | Süre: 12.0s\n",
        "Epoka {n}/6, strata treningowa: {x}, strata walidacyjna: {v}\n",
        "Epoca {n}/6 - perdita: {x} - accuratezza: 0.41\n",
        "Bước {n}/6, mất mát = {x}, tốc độ học = 0.0003\n",
        "Epoch: {n}\nTraining error: {x}\nSelection error: {v}\n",
        "epoch {n} loss {x} correct 7{n}0/1000\n",
        "Epoch {n}: loss {x} (7{s}/1000)\n",
        "Iteration: {n}\nNumTimesteps: 325{s}\nLoss: {x}\n",
        "loss: {x}\nlr: 0.1\niteration: {n}\n",
        "Epoch {n}: loss {x}\n  -> Saved best (loss: {v})\n",
        "checkpoint saved at step {n}, loss {x}\n",
        "step {n} avg. loss [5-{s}]: {x}\n",
        "iter {n}\nloss(X, Y) = {x} (tracked)\n",
    ],
)
def test_each_record_has_its_step_and_loss(write: Write, record: str) -> None:
    head = "| epoch | train loss | val loss |\n" if record.startswith("|") else ""
    run = read_log(write(head + lines(record), "train.log"))
    assert values(run.block, "loss") == LOSSES
    assert run.block.step.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1.#QNAN", math.nan),
        ("-1.#IND00", math.nan),
        ("NaN32", math.nan),
        ("1.#INF", math.inf),
        ("∞", math.inf),
        ("Inf32", math.inf),
        ("−0.25", -0.25),
    ],
)
def test_spellings_of_numbers(write: Write, cell: str, number: float) -> None:
    text = lines("epoch {n} | loss {x} | lr 0.1\n") + f"epoch 7 | loss {cell} | lr 0.1\n"
    block = read_log(write(text, "train.log")).block
    assert block.step.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert block.column("loss").values[-1] == pytest.approx(number, nan_ok=True)


@pytest.mark.parametrize("after", ["Validation epoch {n} done", "Validate epoch {n}\nacc 0.5"])
def test_what_goes_on_counting_is_no_evaluation(write: Write, after: str) -> None:
    text = lines(f"Training epoch {{n}}\n{after}\niter {{s}} loss {{x}}\n")
    assert values(read_log(write(text, "train.log")).block, "loss") == LOSSES


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (lines("step {n} loss 2,{s}0\n"), "commas in 'loss' may be decimal"),
        (lines("Epoch {n} lr 0.1\n") + "Final loss: 0.4\n", "6 lines before it that count 'Epoch'"),
        ("training_loss: 0.0\naccuracy: 0.0\n", "only 'training_loss' is 0"),
        (lines("epoch {n} g(mse: 0.1) d_loss: {x}\n"), "'d_loss' is the loss of one of two"),
        (lines("epoch {n} CE={x} KL={v}\n"), "'CE', 'KL' may be parts"),
        (lines("epoch {n} loss: [{x}, {v}]\n"), "any of 'loss', 'loss\\[1\\]'"),
        (lines("epoch {n} train error: 0.{s} accuracy: 0.{s}\n"), "no number"),
        (
            "Total Epochs: 9\n| Split | Metric | Min. | Epoch | Max. | Epoch |\n|---|---|---|---|\n"
            "| Train | Loss | 0.031 | 9 | 0.412 | 1 |\n| Valid | Loss | 0.041 | 8 | 0.148 | 1 |\n",
            "no number",
        ),
        (
            "  Iter      log prob        ||dx||      ||grad||   Notes \n"
            + lines("  1{n}   {n}.00   0.{n}7   4{n}.04\n"),
            "no number",
        ),
    ],
)
def test_what_is_open_is_refused(write: Write, text: str, reason: str) -> None:
    with pytest.raises(LogError, match=reason):
        read_log(write(text, "train.log"))


def rows(record: str, count: int) -> str:
    """Rows of a table, with a step, tens of it, and a loss that falls."""
    lines = [record.format(n=n, s=10 * n, x=f"{3 - 0.1 * n:.2f}") for n in range(1, count)]
    return "\n".join([*lines, ""])


HEADLINES = lines(
    "== Training epoch {n} ==\niter 10 loss {x}\niter 20 loss {x}\n"
    "== Validating epoch {n} ==\niter 10 loss 9\n"
)
TWO_LINES = "| Epoch | Iteration | Mini-batch | Mini-batch |\n|  |  | Accuracy | Loss |\n"
EXTREMES = "| step | loss | max mem | min lr |\n|---|---|---|---|\n"


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("epoch,loss\n" + lines("{n},{x}\n"), "step=1 2 3 4 5 6"),
        ("epoch,loss\n" + lines("{n}.5,{x}\n"), "step=0 1 2 3 4 5"),
        (
            "CUDA_VISIBLE_DEVICES=0,1\n" + lines("step {n},000 tokens {n},096 loss {x}\n"),
            "step=1000 2000 3000 4000 5000 6000; loss=2.31 1.92 1.71 1.55 1.43 0.98",
        ),
        (HEADLINES, "step=10 20 30 40 50 60 70 80 90 100 110 120"),
        (TWO_LINES + rows("| 0 | {s} | 90.5% | {x} |", 4), "step=10 20 30; loss=2.9 2.8 2.7"),
        (rows("iter={n} {{Training loss}}={x}", 4), "step=1 2 3; loss=2.9 2.8 2.7"),
        (EXTREMES + rows("| {n} | {x} | 1.5 | 0.1 |", 4), "step=1 2 3; loss=2.9 2.8 2.7"),
    ],
    ids=[
        *("epochs", "half epochs", "thousands", "headlines", "names in two lines"),
        *("a name in braces", "columns of extremes"),
    ],
)
def test_what_is_read(write: Write, text: str, columns: str) -> None:
    assert_reads(read_log(write(text, "train.log")), columns, ...)
