"""What the journal costs and what it keeps: `scripts/bench journal`, about four minutes.

Every figure stands beside its bar. All files are temporary; nothing is dropped from the page
cache, so reading is warm.
"""

import faulthandler
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tests.kit.disks import CannotMount, Costs, disk_that_can_hang, hanging
from tests.kit.following import follow_a_writer
from tests.kit.killed_writers import kill_writers

from benchmarks.results import publish, table
from benchmarks.sealed_runs import write_run
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.journal.record_queue import RecordLayout
from trimtab.journal.writer import JournalLimits

NAMES = [f"signal_{number:02d}" for number in range(20)]
LONGEST = 1800
"""Seconds after which the benchmark ends itself, whatever hangs."""


def typical_signals() -> list[dict[str, float]]:
    """Twenty signals as a run has them: float32 on the device, so all digits are in use."""
    values = np.random.default_rng(0).normal(size=(1000, len(NAMES))).astype(np.float32)
    return [dict(zip(NAMES, row, strict=True)) for row in values.astype(float).tolist()]


def writing_cost(root: Path, records: int) -> float:
    """Microseconds of process time per step: all threads, from opening to the last seal."""
    signals = typical_signals()
    config = JournalLimits(queue_records=records, close_seconds=120)
    begin = time.process_time()
    with JournalWriter(RunDirectory(root), config) as writer:
        for step in range(records):
            writer.append(step, signals[step % len(signals)])
            if step % 200 == 0:
                time.sleep(0.02)  # up to 8,000 steps a second, which the thread keeps up with
    cost = 1e6 * (time.process_time() - begin) / records
    if writer.dropped or writer.error is not None:
        raise RuntimeError(f"the journal was not written: {writer.dropped=} {writer.error=}")
    return cost


def reading_seconds(root: Path, records: int, repeats: int) -> tuple[list[float], list[float]]:
    """Read and check a journal, and let numpy load the same columns, turn and turn about."""
    run, array = RunDirectory(root), root / "columns.npy"
    rng = np.random.default_rng(0)
    write_run(run, records, lambda rows: {name: rng.normal(size=len(rows)) for name in NAMES})
    np.save(array, np.random.default_rng(0).normal(size=(len(NAMES), records)))
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(_seconds(lambda: np.load(array)))
        ours.append(_seconds(lambda: read_journal(run)))
    reading = read_journal(run)
    if len(reading.block) != records or reading.damage:
        raise RuntimeError(f"the journal was not read: {len(reading.block)} {reading.damage}")
    return ours, theirs


def hanging_disk(root: Path, seconds: float) -> tuple[Costs, Costs, int, int]:
    """Costs of append on a frozen disk and of nothing at all; records appended and dropped."""
    costs, nothing = Costs(), Costs()
    signals = typical_signals()
    with disk_that_can_hang(root) as place:
        run = RunDirectory(place)
        config = JournalLimits(queue_records=8192, close_seconds=60)
        with JournalWriter(run, config) as writer, hanging(place, longest=seconds + 60):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                costs.append(writer, 0, signals[0])
                nothing.measure(lambda: None)
                time.sleep(0.001)
        reading = read_journal(run)
        if reading.damage or len(reading.block) + reading.dropped != len(costs.wall):
            raise RuntimeError(f"records are not accounted for: {reading.damage}")
        return costs, nothing, len(costs.wall), writer.dropped


Figure = tuple[str, str, str]
"""What, measured, and its bar."""


def run() -> list[Figure]:
    """All figures; the slowest first part is the kills, then the frozen disk."""
    figures = [*_writing(), *_reading(), _following(), *_killing()]
    try:
        figures += _hanging()
    except CannotMount as error:
        figures.append(("frozen disk", f"not here: {error}", "1 ms"))
    return figures


def _writing() -> Iterator[Figure]:
    with _folder() as folder:
        costs = [writing_cost(folder / str(trial), 50_000) for trial in range(7)]
        sealed = sum(path.stat().st_size for path in (folder / "0").rglob("*.seg")) / 50_000
    layout, values = RecordLayout(NAMES), typical_signals()[0].values()
    line = len(layout.line(layout.pack(10**5, 10**5, 0, -1, values)))
    yield (
        "process time per step of 20 signals, with sealing (median and best of 7)",
        f"{statistics.median(costs):.1f} us, {min(costs):.1f} us",
        "40 us",
    )
    yield "bytes per step of 20 signals, open and sealed", f"{line} and {sealed:.0f}", "none"


def _reading() -> Iterator[Figure]:
    with _folder() as folder:
        ours, theirs = reading_seconds(folder, 1_000_000, repeats=15)
        one = statistics.median(
            _seconds(lambda: read_journal(RunDirectory(folder), signals={NAMES[3]}))
            for _ in range(9)
        )
    own, other = statistics.median(ours), statistics.median(theirs)
    yield (
        "1,000,000 x 20 read and checked, warm, in units of np.load (median and best of 15)",
        f"{own / other:.2f}x, {min(ours) / min(theirs):.2f}x",
        "3x",
    )
    yield (
        "the same in milliseconds: all signals, np.load, one signal of the 20",
        f"{1e3 * own:.0f}, {1e3 * other:.0f}, {1e3 * one:.0f}",
        "none",
    )


def _following() -> Figure:
    with _folder() as folder:
        written, seen = follow_a_writer(RunDirectory(folder), 20.0, segment_records=200)
    if seen.ticks != list(range(written)):
        raise RuntimeError("the follower did not see each record once")
    latencies = sorted(seen.latencies)
    return (
        f"a follower in another process, {written} records, polled every 50 ms: "
        "median and longest wait",
        f"{latencies[len(latencies) // 2]:.3f} s, {latencies[-1]:.3f} s",
        "1 s",
    )


def _killing() -> Iterator[Figure]:
    with _folder() as folder:
        results = kill_writers(folder, kills=200, at_once=8)
    records, lost = sum(r.records for r in results), sum(r.lost for r in results)
    yield (
        f"200 writers killed with SIGKILL, {records} records appended: records lost, "
        "age of the oldest of them",
        f"{lost}, {max(r.oldest_lost for r in results):.3f} s",
        "1 s",
    )
    torn = sum(bool(result.reading.damage) for result in results)
    yield "of these: wrong numbers, torn last lines", f"0, {torn}", "0"


def _hanging() -> Iterator[Figure]:
    with _folder() as folder:
        costs, nothing, appended, dropped = hanging_disk(folder, 60)
    for what, bar, summary in (
        ("append while the disk is frozen for 60 s", "1 ms", costs.summary()),
        ("the same clock around nothing at all (noise)", "none", nothing.summary()),
    ):
        yield (
            f"{what}: mean, p99, p99.9, max, max of the thread's own time",
            ", ".join(f"{value:.3f}" for value in summary.values()) + " ms",
            bar,
        )
    what = f"records dropped of {appended} appended meanwhile, all told in the journal"
    yield what, str(dropped), "none"


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    result = work()
    taken = time.perf_counter() - begin
    del result  # giving the memory back is not part of reading
    return taken


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trimtab-benchmark-") as folder:
        yield Path(folder)


def main() -> None:
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=sys.stderr)
    figures = run()
    barred = [figure for figure in figures if figure[2] != "none"]
    others = [(what, measured) for what, measured, bar in figures if bar == "none"]
    publish("Journal", "scripts/bench journal", table(["what", "measured"], others), barred)


if __name__ == "__main__":
    main()
