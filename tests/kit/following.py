"""A follower in another process, and how long each record takes to reach it."""

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from trimtab.journal import Follower, JournalWriter, RunDirectory
from trimtab.journal.writer import JournalLimits

_LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What a follower saw."""

    ticks: list[int]
    latencies: list[float]
    """Seconds from the append of each record to its delivery."""
    dropped: int
    damage: int


def follow(root: str, answer: Connection, poll_seconds: float) -> None:
    """The other process: poll until the writer says that it is done."""
    ticks: list[int] = []
    latencies: list[float] = []
    with Follower(RunDirectory(Path(root))) as follower:
        answer.send(None)  # ready
        done = False
        while not done:
            block = follower.poll()
            now = time.monotonic()  # one clock for all processes of the machine
            if len(block):
                ticks.extend(block.tick.tolist())
                latencies.extend((now - block.columns["appended"].values).tolist())
            done = any(event.kind == _LAST for event in block.events)
            time.sleep(poll_seconds)
        answer.send(
            Followed(
                ticks=ticks,
                latencies=latencies,
                dropped=follower.dropped,
                damage=len(follower.damage),
            )
        )


def follow_a_writer(
    run: RunDirectory, seconds: float, segment_records: int, poll_seconds: float = 0.05
) -> tuple[int, Followed]:
    """Write for some seconds while another process follows; the records written, what it saw."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe()
    child = context.Process(target=follow, args=(str(run.root), there, poll_seconds), daemon=True)
    child.start()
    try:
        assert here.poll(60), "the follower did not start"
        here.recv()
        written, end = 0, time.monotonic() + seconds
        with JournalWriter(run, JournalLimits(segment_records=segment_records)) as writer:
            while time.monotonic() < end:
                writer.append(written, {"appended": time.monotonic(), "loss": 1.0})
                written += 1
                time.sleep(0.002)
            writer.event(_LAST, written)
        assert here.poll(60), "the follower did not come to the end"
        seen: Followed = here.recv()
        child.join(10)
    finally:
        child.kill()
        child.join(10)
    return written, seen
