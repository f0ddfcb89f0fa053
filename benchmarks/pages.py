"""What the page of a long run costs: `scripts/bench pages`, about a minute; needs Chromium."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tests.kit.chromium import chromium, count_line_pixels

from benchmarks.results import Headline, publish
from benchmarks.sealed_runs import write_run
from trimtab.core.block import FloatArray, IntArray
from trimtab.diagnosis import diagnose
from trimtab.journal import RunDirectory, read_journal
from trimtab.report.pages.run_page import dashboard_page

RECORDS = 1_000_000
SPIKE, HEIGHT = 654_321, 9.5
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


def _seconds(call: object) -> float:
    begin = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - begin


def main() -> None:
    """Measure and publish."""
    with tempfile.TemporaryDirectory(prefix="trimtab-pages-") as name:
        figures = list(long_run(Path(name)))
    body = "Reports are judged before; figures are medians of five."
    publish("Pages", "scripts/bench pages", body, figures)


if __name__ == "__main__":
    main()
