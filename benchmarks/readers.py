"""How fast logs are read, and in how much memory: `scripts/bench readers [PART ...]`.

One function a part; without a name all of them run, in some four minutes of CPU time. The
logs are made up, but line for line what the trainers print; all files are temporary. `text` needs
polars, `tensorboard` the package of that name.
"""

import importlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Headline, publish, table
from trimtab.core.block import Block
from trimtab.readers import read_log
from trimtab.readers.reading import FORMATS
from trimtab.readers.table import Wanted, to_run

os.environ["POLARS_MAX_THREADS"] = "1"

STEPS = 1_000_000
MEMORY_BAR = 500
STREAMED_BYTES = 1_000_000_000

TB_STEPS, TB_TAGS = 5_000, 20
TB_TURNS = 5
TB_BAR = 5.0
"""Times faster than TensorBoard's own reader."""

Lines = Callable[[int], str]
"""What is printed at a step."""


def megatron(step: int) -> str:
    return (
        f" [2026-11-15 10:00:00.000000] iteration {step:8d}/ 1000000 | consumed samples: "
        f"{step * 1024:12d} | elapsed time per iteration (ms): {1200 + step % 97:.1f} | throughput "
        f"per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.500000E-04 | global batch size:  1024 | "
        f"lm loss: {2 + 8 / (step + 1):.6E} | loss scale: 1.0 | grad norm: {0.3 + step % 7:.3f} | "
        f"number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def csv(step: int) -> str:
    head = "step,loss,grad_norm,lr,tokens_per_second\n" if step == 0 else ""
    return (
        f"{head}{step},{2 + 8 / (step + 1)!r},{0.3 + step % 7!r},0.0006,{1_270_000 + step % 97}\n"
    )


TEXTS: dict[str, tuple[Lines, str, str]] = {
    "Megatron-LM": (megatron, "text", "|"),
    "CSV, for comparison": (csv, "csv", ","),
}
"""By name: what is printed, its format, and the character at which polars is to split it."""


def text() -> tuple[str, list[Headline]]:
    """Logs of a million steps, beside polars on the same bytes."""
    importlib.import_module("polars")  # which takes its time
    rows = []
    for name, (lines, format, separator) in TEXTS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            with path.open("w") as file:
                file.writelines(map(lines, range(STEPS)))
            size = path.stat().st_size / 1e6
            begin = time.process_time()
            reading = read_log(path)
            own = time.process_time() - begin
            begin = time.process_time()
            _split_by_polars(path, separator)
            others = time.process_time() - begin
        if reading.format is not format or len(reading.block) != STEPS:
            raise RuntimeError(f"{name}: {len(reading.block)} records of {reading.format}")
        speeds = f"{size / own:.0f} MB/s", f"{size / others:.0f} MB/s", f"{own / others:.1f}x"
        rows.append((name, f"{size:.0f} MB", f"{own:.1f} s", *speeds))
    body = (
        f"Logs of {STEPS:,} steps: recognised, every field of every record a number, one block; "
        "CPU time. polars.read_csv, on one thread, splits the same bytes at one character and "
        "leaves the pieces as text; only of CSV it makes numbers too.\n\n"
    )
    header = ("log", "size", "CPU time", "trimtab", "polars", "time by polars'")
    return body + table(header, rows), [
        (f"log of {name}, {STEPS:,} steps: read at", speed, "-", f"polars splits it at {others}")
        for name, _, _, speed, others, _ in rows[:1]
    ]


def memory() -> tuple[str, list[Headline]]:
    """A log of 1 GB through a pipe, so that it never lies on a disk."""
    noise = "".join(
        f"    {name} {'.' * 60}: ({number}.12, {number}.34)\n"
        for number, name in enumerate(("forward-backward", "all-grads-sync", "optimizer") * 20)
    )
    per_step = len(megatron(0)) + len(noise)
    steps = STREAMED_BYTES // per_step
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "log"
        os.mkfifo(pipe)
        context = multiprocessing.get_context("spawn")
        results = context.SimpleQueue()
        reader = context.Process(target=_read_pipe, args=(pipe, results))
        reader.start()
        sent = 0
        with pipe.open("w") as file:
            for step in range(steps):
                sent += file.write(megatron(step)) + file.write(noise)
        reader.join()
        with closing(results):
            records, peak, seconds = results.get()
    if records != steps:
        raise RuntimeError(f"{records} records of {steps} were read")
    body = (
        f"{sent / 1e9:.2f} GB of the output of Megatron-LM with its timers, through a pipe: one "
        f"line in 61 is a record, {records:,} in all; peak resident memory of the whole process, "
        f"the block included. CPU time {seconds:.0f} s, {sent / 1e6 / seconds:.0f} MB/s."
    )
    headline = (f"memory for a log of {sent / 1e9:.1f} GB", f"{peak:.0f} MB", f"{MEMORY_BAR} MB")
    return body, [headline]


def _split_by_polars(path: Path, separator: str) -> Any:
    header = separator == ","
    return importlib.import_module("polars").read_csv(
        path,
        separator=separator,
        has_header=header,
        infer_schema=header,
        quote_char=None,
        truncate_ragged_lines=True,
    )


def _read_pipe(
    pipe: Path, results: "multiprocessing.SimpleQueue[tuple[int, float, float]]"
) -> None:
    found = FORMATS["text"].load(pipe, lambda done, total: None, Wanted())
    block = to_run(found, pipe, "text").block
    results.put((len(block), _peak_megabytes(), time.process_time()))


def _peak_megabytes() -> float:
    """Return the largest resident memory of this program; ru_maxrss has that of its parent too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    """CPU seconds for one file, and whether both readers found the same."""

    style: str
    ours: list[float]
    stock: list[float]
    is_equal: bool

    @property
    def times_faster(self) -> float:
        return statistics.median(self.stock) / statistics.median(self.ours)


def _measure_scalars(style: str, *, new_style: bool) -> _Speed:
    """Write a file of one style by torch's SummaryWriter, and read it in turns."""
    with tempfile.TemporaryDirectory() as folder:
        _write_scalars(folder, new_style=new_style)
        block, tags = read_log(folder).block, _read_stock(folder)  # both warm
        ours: list[float] = []
        stock: list[float] = []
        for _ in range(TB_TURNS):
            ours.append(_seconds(lambda: read_log(folder)))
            stock.append(_seconds(lambda: _read_stock(folder)))
    return _Speed(style=style, ours=ours, stock=stock, is_equal=_is_equal(block, tags))


def tensorboard() -> tuple[str, list[Headline]]:
    """Read event files against TensorBoard's own `EventAccumulator`, told to keep every value.

    Both check the checksums; CPU time of the same process, in turns.
    """
    speeds = [
        _measure_scalars("simple_value (torch)", new_style=False),
        _measure_scalars("tensor (TensorFlow 2, JAX)", new_style=True),
    ]
    rows = [
        (
            speed.style,
            f"{TB_STEPS * TB_TAGS / statistics.median(speed.ours) / 1000:,.0f}",
            f"{TB_STEPS * TB_TAGS / statistics.median(speed.stock) / 1000:,.0f}",
            f"{speed.times_faster:.1f}",
            "equal" if speed.is_equal else "DIFFERENT",
        )
        for speed in speeds
    ]
    header = ("scalars as", "ours, k/s", "stock, k/s", "times faster", "values")
    body = (
        f"{TB_STEPS * TB_TAGS:,} scalars under {TB_TAGS} tags in one file, medians of {TB_TURNS} "
        "readings each in turns, CPU time. The stock reader is `EventAccumulator` with nothing "
        "sampled away.\n\n"
    )
    slowest = min(speed.times_faster for speed in speeds)
    what = "TensorBoard files: times faster than its own reader"
    return body + table(header, rows), [(what, f"{slowest:.1f}", f"{TB_BAR:g}")]


def _write_scalars(folder: str, *, new_style: bool) -> None:
    from torch.utils.tensorboard import SummaryWriter

    values = np.random.default_rng(0).normal(size=(TB_STEPS, TB_TAGS))
    names = ["train/loss", *(f"train/metric_{number}" for number in range(1, TB_TAGS))]
    with SummaryWriter(folder) as writer:
        for step, row in enumerate(values.tolist()):
            for name, value in zip(names, row, strict=True):
                writer.add_scalar(name, value, step, new_style=new_style)


def _read_stock(folder: str) -> dict[str, list[float]]:
    """Return every scalar by its tag, as TensorBoard reads it."""
    events: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    accumulator = events.EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    found = {tag: [e.value for e in accumulator.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        found[tag] = [e.tensor_proto.float_val[0] for e in accumulator.Tensors(tag)]
    return found


def _is_equal(block: Block, tags: dict[str, list[float]]) -> bool:
    names = {"train/loss": "loss"}
    return len(tags) == TB_TAGS and all(
        block.column(names.get(tag, tag)).values.tolist() == values for tag, values in tags.items()
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


PARTS: dict[str, Callable[[], tuple[str, list[Headline]]]] = {
    "text": text,
    "memory": memory,
    "tensorboard": tensorboard,
}


def main(names: list[str]) -> None:
    """Run the parts of these names, or all; published are all."""
    found = [PARTS[name]() for name in names or PARTS]
    body = "\n\n".join(text for text, _ in found)
    if names:
        print(body)
    else:
        headlines = [headline for _, some in found for headline in some]
        publish("Readers: speed and memory", "scripts/bench readers", body, headlines)


if __name__ == "__main__":
    main(sys.argv[1:])
