"""What pages cost, and how late a live page is: `scripts/bench pages`, about two minutes.

Needs Chromium. The live part is short: 20 seconds of 50 runs that are followed by 200 browsers.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.kit.chromium import chromium, count_line_pixels

from benchmarks.results import Headline, publish
from benchmarks.sealed_runs import write_run
from trimtab.core.block import FloatArray, IntArray
from trimtab.diagnosis import diagnose
from trimtab.journal import JournalWriter, RunDirectory, read_journal
from trimtab.report.pages.run_page import dashboard_page

RECORDS = 1_000_000
SPIKE, HEIGHT = 654_321, 9.5
RUNS, CLIENTS, SECONDS, RATE = 50, 200, 20.0, 2.0
"""Live runs, browsers, length of the measurement, records a second of each run."""

SIGNALS = (
    *("loss", "grad_norm", "lr", "tokens_per_second", "step_seconds", "param_norm"),
    *("update_norm", "adam_v_norm", "token_rarity", "loss_scale"),
    *(f"activation_rms/blocks.{layer}" for layer in range(10)),
)


def write_long_run(run: RunDirectory) -> None:
    """A million records of twenty signals, with one loss that is high for one step."""
    rng = np.random.default_rng(0)

    def signals(rows: IntArray) -> dict[str, FloatArray]:
        level = 2.0 + 2.0 * np.exp(-rows / 50_000)
        values = {name: level + rng.normal(0, 0.03, len(rows)) for name in SIGNALS}
        values["loss"][rows == SPIKE] = HEIGHT
        return values

    write_run(run, RECORDS, signals)


def long_run(folder: Path) -> Iterator[Headline]:
    """Size and time of the page of a long run, and how fast a browser shows it."""
    run, page = RunDirectory(folder / "long"), folder / "page.html"
    write_long_run(run)
    reading, making = [], []
    report = diagnose(run.root)
    for _ in range(5):
        reading.append(_seconds(lambda: read_journal(run)))
        making.append(_seconds(lambda: page.write_text(dashboard_page(report), encoding="utf-8")))
    ratio = statistics.median(making) / statistics.median(reading)
    yield "page, 1,000,000 x 20", f"{page.stat().st_size / 1e6:.2f} MB", "6 MB"
    made = f"{ratio:.1f} ({statistics.median(making):.2f} s)"
    yield "made in, of the time to read the journal", made, "5"
    paints, ready = [], []
    with chromium() as browser:
        for _ in range(5):
            browser.open(page.as_uri())
            browser.wait_for("performance.getEntriesByName('first-contentful-paint').length")
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            paints.append(float(browser.evaluate(paint)))
            ready.append(float(browser.evaluate("document.documentElement.dataset.ready")))
        seen = count_line_pixels(browser, 0, SPIKE, HEIGHT)
        problems = browser.complaints()
    if problems:
        raise RuntimeError(f"the page complains: {problems[:3]}")
    yield "first paint in Chromium", f"{statistics.median(paints) / 1000:.2f} s", "2 s"
    yield "all charts drawn", f"{statistics.median(ready) / 1000:.2f} s", "2 s"
    spike = "seen" if seen >= 5 else f"not seen ({seen} pixels)"
    yield "a spike of one step at full zoom-out", spike, "seen"


@dataclass
class LiveRuns:
    """Runs that write, and when they wrote what."""

    folder: Path
    written: dict[tuple[str, int], float] = field(default_factory=dict)
    delays: list[float] = field(default_factory=list)
    streams: int = 0

    async def write(self, seconds: float) -> None:
        """Append records to every run at its rate."""
        writers = {}
        for number in range(RUNS):
            run = RunDirectory(self.folder / f"run-{number:02d}")
            writers[run.root.name] = JournalWriter(run)
        end, step = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            for name, writer in writers.items():
                now = time.time()
                self.written[name, step] = now
                writer.append(step, {"loss": 2.0, "grad_norm": 0.5, "clock": now})
                await asyncio.sleep(1 / RATE / RUNS)
            step += 1
        for writer in writers.values():
            await asyncio.to_thread(writer.close)

    async def follow(self, port: int, path: str, name: str | None) -> None:
        """One browser: of one run, or of the fleet."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        await writer.drain()
        self.streams += 1
        try:
            while line := await reader.readline():
                if line.startswith(b"data: "):
                    self._measure(json.loads(line[6:]), name)
        finally:
            writer.close()

    def _measure(self, message: dict[str, object], name: str | None) -> None:
        now = time.time()
        rows = message.get("rows")
        if name is not None:
            steps = [(name, message["step"])]
        else:
            steps = [(row["name"], row["step"]) for row in rows] if isinstance(rows, list) else []
        for key in steps:
            sent = self.written.get(key)  # type: ignore[arg-type]
            if sent is not None:
                self.delays.append(now - sent)


async def measure_live(live: LiveRuns, port: int) -> None:
    """All browsers follow while all runs write."""
    from trimtab.observe.server.hub import Hub

    hub = Hub([live.folder])
    hub.poll()
    ids = {feed.name: id for id, feed in hub.feeds.items()}
    hub.close()
    names = sorted(ids)
    paths: list[tuple[str, str | None]] = [("/events", None)] * (CLIENTS // 2)
    paths += [(f"/run/{ids[names[n % RUNS]]}/events", names[n % RUNS]) for n in range(CLIENTS // 2)]
    followers = [asyncio.create_task(live.follow(port, path, name)) for path, name in paths]
    while live.streams < CLIENTS:
        await asyncio.sleep(0.1)
    await asyncio.sleep(2)
    await live.write(SECONDS)
    await asyncio.sleep(2)
    for follower in followers:
        follower.cancel()
    await asyncio.gather(*followers, return_exceptions=True)


def served(folder: Path) -> tuple[Headline, str]:
    """How late 200 browsers see what 50 runs write; what else is to be said of it."""
    live = LiveRuns(folder)
    for number in range(RUNS):
        RunDirectory(folder / f"run-{number:02d}").write_manifest({"dtype": "bf16"})
    before = os.times()
    with _server(folder) as port:
        begin = time.monotonic()
        asyncio.run(measure_live(live, port))
        seconds = time.monotonic() - begin
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])  # of the server, which has ended
    delays = np.array(live.delays)
    half, late = (float(value) for value in np.percentile(delays, [50, 99]))
    what = f"{RUNS} live runs, {CLIENTS} browsers, {len(delays):,} updates"
    others = f"{what}: median: {half:.2f} s; the server meanwhile: {cpu / seconds:.2f} cores"
    return (f"{what}: 99th percentile", f"{late:.2f} s", "1 s"), others


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    command = [sys.executable, "-m", "trimtab.cli", "observe", str(folder), "--web"]
    command += ["--address", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("the server has no output")
            address = process.stdout.readline()
            yield int(address.split("127.0.0.1:")[1].split("/")[0])
        finally:
            process.terminate()


def _seconds(call: object) -> float:
    begin = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - begin


def main() -> None:
    """Measure and publish."""
    with tempfile.TemporaryDirectory(prefix="trimtab-pages-") as name:
        folder = Path(name)
        figures = list(long_run(folder))
        late, others = served(folder / "runs")
    body = (
        "Reports are judged before; figures of the page are medians of five. The live part "
        f"lasts {SECONDS:.0f} s, at {RATE:.0f} records a second in each run. {others}."
    )
    publish("Pages", "scripts/bench pages", body, [*figures, late])


if __name__ == "__main__":
    main()
