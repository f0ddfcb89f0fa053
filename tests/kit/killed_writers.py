"""Writers that are killed in the middle of their work, and what is left of their journals."""

import mmap
import multiprocessing
import os
import random
import signal
import struct
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.kit.journal_rows import row, rows_of
from trimtab.journal import DamageKind, JournalRun, JournalWriter, RunDirectory, read_journal
from trimtab.journal.writer import JournalLimits

_PLACES = 100_000
"""Records of which a child notes the time; it is killed long before it has written so many."""

_HARMLESS = {DamageKind.TORN_TAIL}
"""All that a kill may leave behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killing:
    """One writer, killed."""

    records: int
    """Records that it had appended."""
    lost: int
    """Records of these that are not in the journal."""
    oldest_lost: float
    """Seconds between the append of the oldest lost record and the kill; 0 if none is lost."""
    reading: JournalRun


def signals_at(tick: int) -> dict[str, float]:
    """What is recorded at a tick: any wrong number can be told from the tick alone."""
    signals = {"loss": 3 / (tick + 1), "norm": tick * 0.1, "lr": 1e-3}
    if tick % 7 == 0:
        signals["loss"] = float("nan")
    if tick % 10 == 0:
        signals["eval_loss"] = float(tick)
    return signals


def write_until_killed(root: str, clock: str, segment_records: int, pause: float) -> None:
    """The child: append for ever, and note in shared memory when each record was appended."""
    config = JournalLimits(segment_records=segment_records)
    writer = JournalWriter(RunDirectory(Path(root)), config)
    with Path(clock).open("r+b") as file:
        times = mmap.mmap(file.fileno(), 0)
    for step in range(_PLACES):
        tick = writer.append(step, signals_at(step), data_position=7 * step)
        struct.pack_into("=d", times, 8 * tick, time.monotonic())
        time.sleep(pause)


def kill_writers(folder: Path, kills: int, at_once: int, seed: int = 0) -> list[Killing]:
    """Start writers, kill each at a random moment of its life, and read what is left."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    rng = random.Random(seed)
    living: list[tuple[float, BaseProcess, Path]] = []
    results: list[Killing] = []
    try:
        for number in range(kills + at_once):
            if len(living) == at_once or number >= kills:
                living.sort(key=lambda entry: entry[0])
                kill_at, child, home = living.pop(0)
                time.sleep(max(0.0, kill_at - time.monotonic()))
                results.append(_kill(child, home))
            if number < kills:
                home = folder / f"{number:03d}"
                home.mkdir()
                with (home / "clock").open("wb") as clock:
                    clock.truncate(8 * _PLACES)
                segment_records = rng.choice([7, 40, 150, 10_000])
                arguments = (str(home), str(home / "clock"), segment_records, 0.002)
                child = context.Process(target=write_until_killed, args=arguments, daemon=True)
                child.start()
                living.append((time.monotonic() + rng.uniform(0.7, 1.3), child, home))
    finally:
        for _, child, _ in living:
            child.kill()
    return results


def _kill(child: BaseProcess, home: Path) -> Killing:
    assert child.pid is not None
    moment = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    stamps = struct.unpack(f"={_PLACES}d", (home / "clock").read_bytes())
    appended = {tick: stamp for tick, stamp in enumerate(stamps) if stamp}
    reading = read_journal(RunDirectory(home))
    found = rows_of(reading.block)
    for tick, values in found.items():
        assert values == row(tick, signals_at(tick), 0, 7 * tick), f"a wrong number at {tick}"
    assert {damage.kind for damage in reading.damage} <= _HARMLESS, reading.damage
    assert reading.ended is None
    lost = [moment - stamp for tick, stamp in appended.items() if tick not in found]
    return Killing(
        records=len(appended), lost=len(lost), oldest_lost=max(lost, default=0.0), reading=reading
    )
