"""What trainers print is not always what happened; what is read is."""

import math

import numpy as np
import pytest
from tests.readers.shapes import Write, assert_reads, values

from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import Quality
from trimtab.readers import read_log


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
        megatron(30, " lm loss: 0.000000E+00 |", skipped=10),  # all: there is no mean
        megatron(40, skipped=10, nan=3),  # skipped for a NaN loss
        megatron(50, " lm loss: 2.400000E+00 |", skipped=4),
        megatron(60, skipped=4),  # NaN among those that were not skipped
        megatron(70, " lm loss: INF |"),
    ]
    reading = read_log(write("".join(log)))
    columns = "loss=2.5 nan - nan 2.4 nan inf; number of nan iterations=0 0 0 3 0 0 0"
    assert_reads(reading, columns, ...)
    assert reading.block.quality("loss") is Quality.INFERRED
    assert reading.notes[1:] == (
        "3 records have no 'lm loss', which Megatron leaves out where it is NaN: read as NaN.",
        "1 record has no loss, as all iterations were skipped.",
    )


def test_megatron_that_never_printed_a_loss_was_nan_from_the_start(write: Write) -> None:
    assert_reads(read_log(write(megatron(1) + megatron(2))), "loss=nan nan", ...)


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


def mlperf(step: int, batch: int | None = None) -> str:
    stats = f'"tracked_stats", "value": {{"train_loss": 2.5}}, "metadata": {{"step": {step}}}'
    line = f':::MLLOG {{"key": {stats}}}\n'
    if batch is None:
        return line
    return f':::MLLOG {{"key": "global_batch_size", "value": {batch}, "metadata": {{}}}}\n{line}'


def clock(unit: str, factor: int) -> str:
    """What modded-nanogpt prints: its clock is set back after the warm-up."""
    times = {1: 0.4, 2: 0.8, 3: 0.1, 4: 0.6, 6: 1.6}
    return "".join(
        f"step:{step}/10 train_loss:5.0 train_time:{time * factor:.0f}{unit} step_avg:nan{unit}\n"
        for step, time in times.items()
    )


def deepspeed_chat() -> str:
    steps = [(0, 0), (0, 1), (0, 2), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    return "".join(f"epoch: {e}|step: {step}|ppo_ep: 1|act_loss: 0.5\n" for e, step in steps)


C_LINE = "step {}/10 | loss {} (+nanz)| norm {} (+nanz)| lr 1.00e-04 | 9.50 ms | {} tok/s\n"
TITAN = "step: {}  loss:  2.50000  grad_norm:  1.0000  memory: 1GiB(2%)  tps: 1,234  mfu: {}\n"
OLMO = (
    "[step=1/???,epoch=1]\n    train/CE loss=2.5\n    throughput/total tokens=1.234B\n"
    "    train/PPL=12,345\n    name=some text\n"
)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (deepspeed_chat(), "step=0 1 2 1 2 3 4 5; attempt=0 0 0 1 1 1 1 1"),
        (mlperf(64, 64) + mlperf(128), "step=1 2"),
        (mlperf(1, 64) + mlperf(2), "step=1 2"),
        (mlperf(3), "step=3"),
        (clock("ms", 10_000), "step_seconds=- 4 - 5 5"),
        (clock("s", 10), "step_seconds=- 4 - 5 5"),
        (OLMO, "throughput/total tokens=1.234e9; train/PPL=12345"),
        (
            C_LINE.format(1, "   -nan", "   inf", "100") + C_LINE.format(2, "2.5", "1.0", "inf"),
            "loss=nan 2.5; grad_norm=inf 1",
        ),
        (
            TITAN.format(1, "N/A") + TITAN.format(2, "30.00%"),
            "mfu=- 30; tokens_per_second=1234 1234",
        ),
    ],
    ids=[
        *("epochs of DeepSpeed-Chat are joined", "samples of MLPerf", "steps of MLPerf"),
        *("MLPerf without a batch", "clock of modded-nanogpt", "the same in seconds"),
        *("large numbers of OLMo", "NaN of C", "a quantized torchtitan"),
    ],
)
def test_what_is_read(write: Write, text: str, columns: str) -> None:
    assert_reads(read_log(write(text)), columns, ...)


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
    assert_reads(read_log(write(line + "\n")), "step=1; loss=2.5", ...)
