"""What trainers print is not always what happened; what is read is."""

import math

import numpy as np
import pytest
from tests.readers.shapes import Write, values

from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import Quality
from trimtab.readers import read_log

NAN = math.nan


def megatron(step: int, loss: str = "", skipped: int = 0, nan: int = 0, rest: str = "") -> str:
    return (
        f" iteration {step:8d}/    1000 | consumed samples: {step:12d} | learning rate: 1.0E-04 |"
        f"{loss}{rest} number of skipped iterations: {skipped:3d} |"
        f" number of nan iterations: {nan:3d} |\n"
    )


def test_megatron_gives_dropped_losses_back(write: Write) -> None:
    log = [
        megatron(10, " lm loss: 2.500000E+00 |"),
        megatron(20),  # the mean was NaN
        megatron(
            30, " lm loss: 0.000000E+00 |", skipped=10
        ),  # all skipped: nothing to take a mean of
        megatron(40, skipped=10, nan=3),  # skipped for a NaN loss
        megatron(50, " lm loss: 2.400000E+00 |", skipped=4),
        megatron(60, skipped=4),  # NaN among those that were not skipped
        megatron(70, " lm loss: INF |"),
    ]
    reading = read_log(write("".join(log)))
    np.testing.assert_array_equal(
        reading.block.column("loss").values, [2.5, NAN, NAN, NAN, 2.4, NAN, math.inf]
    )
    present = reading.block.column("loss").present
    assert present.tolist() == [True, True, False, True, True, True, True]
    assert reading.block.quality("loss") is Quality.INFERRED
    assert values(reading.block, "number of nan iterations") == [0, 0, 0, 3, 0, 0, 0]
    assert reading.notes[1:] == (
        "Records in which 'lm loss' was not printed, as Megatron does with NaN; treated as NaN: 3.",
        "Records in which all iterations were skipped, without a loss: 1.",
    )


def test_megatron_that_never_printed_a_loss_was_nan_from_the_start(write: Write) -> None:
    block = read_log(write(megatron(1) + megatron(2))).block
    assert block.column("loss").present.all()
    assert np.isnan(block.column("loss").values).all()


def test_megatron_with_other_losses_is_left_alone(write: Write) -> None:
    path = write(megatron(1, " encoder loss: 1.0E+00 | decoder loss: 2.0E+00 |"), "train.log")
    with pytest.raises(UnreadableLog, match="'encoder loss', 'decoder loss'"):
        read_log(path)


@pytest.mark.parametrize("stride", [1, 10])
def test_a_mean_over_one_step_is_no_mean(write: Write, stride: int) -> None:
    log = [megatron(step * stride, " lm loss: 2.5E+00 |") for step in range(1, 9)]
    quality = read_log(write("".join(log))).block.quality("loss")
    assert quality is (Quality.RAW if stride == 1 else Quality.WINDOW_MEAN)


def scaled_log(*, carried: bool, late: bool = False, changes: int = 12) -> tuple[str, list[float]]:
    """A log in which the loss scale goes up and down, with the norms as they were."""
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(0, 0.3, 10 * changes)).tolist()
    scales = [2.0 ** (12 + (number // 10) % 3) for number in range(len(norms))]
    lines = []
    for number, (norm, scale) in enumerate(zip(norms, scales, strict=True)):
        shown = scales[min(number + 1, len(scales) - 1)] if late else scale
        norm = norm * scale if carried else norm
        rest = f" loss scale: {shown:.1f} | grad norm: {norm:.9f} |"
        lines.append(megatron(number + 1, " lm loss: 2.5E+00 |", rest=rest))
    return "".join(lines), norms


@pytest.mark.parametrize("late", [False, True])
def test_norms_that_carry_the_loss_scale_are_freed_of_it(write: Write, late: bool) -> None:
    text, norms = scaled_log(carried=True, late=late)
    reading = read_log(write(text))
    np.testing.assert_allclose(reading.block.column("grad_norm").values[1:], norms[1:], rtol=1e-6)
    assert reading.block.quality("grad_norm") is Quality.INFERRED
    [_, note] = reading.notes
    assert note.startswith("'grad norm' moves with 'loss scale'")


@pytest.mark.parametrize(("carried", "changes"), [(False, 12), (True, 4), (False, 100)])
def test_norms_are_left_alone_without_proof(write: Write, carried: bool, changes: int) -> None:
    text, norms = scaled_log(carried=carried, changes=changes)
    block = read_log(write(text)).block
    wanted = np.array(norms) * (block.column("loss_scale").values if carried else 1)
    np.testing.assert_allclose(block.column("grad_norm").values, wanted, rtol=1e-6)
    assert block.quality("grad_norm") is Quality.RAW


def fairseq(fields: str, step: int = 100) -> str:
    start = "2026-11-15 10:00:00 | INFO | train_inner | epoch 001:    100 / 5000 "
    return f"{start}{fields}, num_updates={step}, lr=1e-05\n"


@pytest.mark.parametrize(
    ("fields", "loss"),
    [
        ("loss=3, ppl=8", 3 * math.log(2)),
        ("loss=4.5, nll_loss=3, ppl=8", 4.5 * math.log(2)),
        ("loss=3, ppl=20.09", 3),
        ("loss=3", 3),
        ("loss=3, ppl=777", 3),
    ],
)
def test_fairseq_is_read_in_nats(write: Write, fields: str, loss: float) -> None:
    reading = read_log(write(fairseq(fields)))
    assert values(reading.block, "loss") == [loss]
    told = "".join(reading.notes)
    assert ("multiplied by log(2)" in told) == (loss != 3)
    assert ("was left as it is" in told) == (fields in ("loss=3", "loss=3, ppl=777"))


def test_fairseq_rounds_its_steps(write: Write) -> None:
    reading = read_log(write(fairseq("loss=3, ppl=8") + fairseq("loss=3, ppl=8", step=1_234_500)))
    assert any("six digits" in note for note in reading.notes)


def test_nanochat_is_smoothed_and_says_so(write: Write) -> None:
    line = "step 00010/05000 (0.20%) | loss: 4.5 | lrm: 0.50 | dt: 400.00ms | tok/sec: 1,234\n"
    reading = read_log(write(line))
    assert reading.block.quality("loss") is Quality.SMOOTHED
    assert "loss is taken from 'loss': an exponential average over some ten steps of one rank." in (
        reading.notes
    )


def test_epochs_of_deepspeed_chat_are_joined(write: Write) -> None:
    steps = [(0, 0), (0, 1), (0, 2), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    text = "".join(
        f"epoch: {epoch}|step: {step}|ppo_ep: 1|act_loss: 0.5\n" for epoch, step in steps
    )
    reading = read_log(write(text))
    assert reading.block.step.tolist() == [0, 1, 2, 1, 2, 3, 4, 5]
    assert reading.block.attempt.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert "Epochs in which the step count starts again, joined: 2." in reading.notes


def mlperf(step: int, batch: int | None = None) -> str:
    stats = f'"tracked_stats", "value": {{"train_loss": 2.5}}, "metadata": {{"step": {step}}}'
    line = f':::MLLOG {{"key": {stats}}}\n'
    if batch is None:
        return line
    return f':::MLLOG {{"key": "global_batch_size", "value": {batch}, "metadata": {{}}}}\n{line}'


@pytest.mark.parametrize(
    ("first", "second", "steps"),
    [
        (mlperf(64, 64), mlperf(128), [1, 2]),
        (mlperf(1, 64), mlperf(2), [1, 2]),
        (mlperf(3), "", [3]),
    ],
)
def test_mlperf_counts_samples_or_steps(
    write: Write, first: str, second: str, steps: list[int]
) -> None:
    assert read_log(write(first + second)).block.step.tolist() == steps


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1000), ("s", 1)])
def test_the_clock_of_modded_nanogpt(write: Write, unit: str, factor: float) -> None:
    clock = [0.4, 0.8, 0.1, 0.6, 1.6]
    steps = [1, 2, 3, 4, 6]
    text = "".join(
        f"step:{step}/10 train_loss:5.0 train_time:{time * factor:.3f}{unit} step_avg:nan{unit}\n"
        for step, time in zip(steps, clock, strict=True)
    )
    seconds = values(read_log(write(text)).block, "step_seconds")
    assert seconds == [None, pytest.approx(0.4), None, pytest.approx(0.5), pytest.approx(0.5)]


def test_large_numbers_of_olmo(write: Write) -> None:
    text = "[step=1/???,epoch=1]\n    train/CE loss=2.5\n    throughput/total tokens=1.234B\n"
    text += "    train/PPL=12,345\n    name=some text\n"
    block = read_log(write(text)).block
    assert values(block, "throughput/total tokens") == [1.234e9]
    assert values(block, "train/PPL") == [12345]
    assert "name" not in block.columns


def test_what_c_prints_for_nan(write: Write) -> None:
    line = "step {}/10 | loss {} (+nanz)| norm {} (+nanz)| lr 1.00e-04 | 9.50 ms | {} tok/s\n"
    text = line.format(1, "   -nan", "   inf", "100") + line.format(2, "2.500000", "1.0000", "inf")
    block = read_log(write(text)).block
    np.testing.assert_array_equal(block.column("loss").values, [NAN, 2.5])
    np.testing.assert_array_equal(block.column("grad_norm").values, [math.inf, 1])
    assert block.column("loss").present.all()


def test_a_quantized_torchtitan_has_no_mfu(write: Write) -> None:
    line = "step: {}  loss:  2.50000  grad_norm:  1.0000  memory: 1GiB(2%)  tps: 1,234  mfu: {}\n"
    reading = read_log(write(line.format(1, "N/A") + line.format(2, "30.00%")))
    assert values(reading.block, "mfu") == [None, 30]
    assert values(reading.block, "tokens_per_second") == [1234, 1234]


@pytest.mark.parametrize(
    "line",
    [
        "step 1/10 | loss 2.500000 (+0.1z)| norm 1.0 (+0.1z)| lr 1e-4 | 9 ms | 1 tok/s",
        "step     1 | loss: 2.500000 | lr 1.0000e-04 | norm: 1.0 | dt: 9ms",
        "step 1 | epoch 0 | loss 2.5 | grad_norm 1.0 | lr 1e-4 | mem 1 GiB",
        "step 00001/00010 (10.00%) | loss: 2.500000 | lrm: 1.00 | dt: 9ms",
        "step: 1  loss: 2.50000  grad_norm: 1.0000  memory: 1GiB(1%)",
        "step:1/10 train_loss:2.5 train_time:9ms step_avg:9ms",
        "steps: 1 loss: 2.5000 iter time (s): 0.009 samples/sec: 1.0",
        "step 1: train loss 2.5000, val loss 2.6000",
        "step 1: train loss 2.500000 (took 9.000000 ms)",
        "s:1 trl:2.5000 lr:0.000100 norm:1.00",
    ],
)
def test_one_line_is_enough(write: Write, line: str) -> None:
    reading = read_log(write(line + "\n"))
    assert reading.block.step.tolist() == [1]
    assert values(reading.block, "loss") == [2.5]
