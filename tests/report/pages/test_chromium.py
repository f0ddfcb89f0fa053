"""Pages in a real Chromium: nothing hostile runs, keys and zoom work, no axe finding.

Needs Debian's chromium; axe-core comes from npm into a cache outside of the repository.
"""

import dataclasses
import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_commands import write_run
from tests.kit.chromium import CHROMIUM, Browser, chromium, count_line_pixels
from tests.kit.synthetic import block_of, falling_loss, troubled_run
from tests.observe.server.test_server import serving
from tests.report.pages.hostile import PAYLOADS, hostile_report
from tests.report.pages.test_pages import odd_run
from tests.report.test_reports import report_of, troubled_report

from trimtab.core.run import Run
from trimtab.explain.comparison import FirstDifference, StepWindow, compare_signal
from trimtab.journal import JournalWriter, RunDirectory, add_note
from trimtab.report.incident_files import write_incidents
from trimtab.report.pages.many_runs import Compared, compare_page
from trimtab.report.pages.run_page import dashboard_page
from trimtab.report.run_report import RunReport

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

AXE = "axe-core@4.14.0"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def cell(report: RunReport, style: str = "") -> str:
    """A page around the card of a report, as a notebook has it."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>notebook</title>'
        '<link rel="icon" href="data:,">'
        f'<body style="{style}"><main><h1>notebook</h1>{report._repr_html_()}</main></body>'
    )


CONTRAST = """
(() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (...colours) => {
    for (const one of colours) { paint.fillStyle = one; paint.fillRect(0, 0, 1, 1); }
    const [r, g, b] = [...paint.getImageData(0, 0, 1, 1).data].map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = getComputedStyle(document.body).backgroundColor;
  const contrasts = [...document.querySelectorAll(".trimtab div, .trimtab text, summary, b")]
    .map(one => getComputedStyle(one)[one.tagName === "text" ? "fill" : "color"])
    .map(ink => [luminance(paper, ink), luminance(paper)].sort((a, b) => b - a))
    .map(([high, low]) => (high + 0.05) / (low + 0.05));
  return Math.min(...contrasts);
})()
"""


@pytest.mark.parametrize("prefers_dark", [False, True])
@pytest.mark.parametrize(
    "theme",
    [
        "background:#fff;color:#000000de",
        "background:#111;color:#ffffffde",
        "background:#1e1e1e;color:#ccc",
    ],
    ids=["JupyterLab light", "JupyterLab dark", "VS Code dark"],
)
def test_a_card_can_be_read_in_every_theme_whatever_the_system_prefers(
    theme: str, prefers_dark: bool, browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "card.html"
    page.write_text(cell(report_of(troubled_run(), notes=["a note"]), theme), encoding="utf-8")
    browser.open(page.as_uri(), dark=prefers_dark, width=700)
    assert browser.evaluate(CONTRAST) >= 4.5  # WCAG 2.1, level AA
    assert browser.evaluate("document.documentElement.scrollWidth") <= 700
    assert browser.complaints() == []


def write_pages(report: RunReport, folder: Path) -> list[Path]:
    """Every kind of page of a run, as files."""
    (folder / "dashboard.html").write_text(dashboard_page(report), encoding="utf-8")
    (folder / "card.html").write_text(cell(report), encoding="utf-8")
    write_incidents(report, folder / "incidents")
    found = compare_signal(report.block, report.block, 0.05)
    run = Run(block=report.block)
    difference = FirstDifference(signal=PAYLOADS[4], step=1, ours=1.0, theirs=2.0)
    compared = Compared(
        name=report.source,
        run=run,
        base_name=PAYLOADS[3],
        base=run,
        found=found,
        differences=[difference],
        state=None,
    )
    page = compare_page([compared], StepWindow())
    (folder / "compare.html").write_text(page, encoding="utf-8")
    return [*sorted(folder.rglob("*.html")), *sorted(folder.rglob("*.svg"))]


def test_at_least_forty_payloads_are_tried() -> None:
    assert len(set(PAYLOADS)) >= 40


def test_nothing_hostile_runs_in_a_file(browser: Browser, tmp_path: Path) -> None:
    pages = write_pages(hostile_report(), tmp_path)
    assert len(pages) >= 7
    for page in pages:
        for dark in (False, True):
            browser.open(page.as_uri(), dark=dark)
            if page.suffix == ".html":
                browser.evaluate(
                    "for (const one of document.querySelectorAll('details')) one.open = true"
                )
                browser.evaluate("new Promise(done => setTimeout(done, 200))")
                browser.evaluate("document.body.click()")
            assert browser.complaints() == [], page.name
            assert browser.requests() == [page.as_uri()], page.name


def test_nothing_hostile_runs_in_a_served_page(browser: Browser, tmp_path: Path) -> None:
    texts = [text for text in PAYLOADS if "/" not in text and "\x00" not in text]
    for number, payload in enumerate(texts):
        name = payload.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        run = RunDirectory(tmp_path / f"{number} {name}")
        run.write_manifest({"dtype": payload, "link": "javascript:alert(60)"})
        with JournalWriter(run) as journal:
            for step in range(3):
                journal.append(step, {"loss": 2.0, name: 1.0})
            journal.event("incident", 1, number=1, onset=1, symptoms=[name], cause=name)
        add_note(run, name)
    for client in serving(tmp_path):
        address = f"http://127.0.0.1:{client.port}/"
        for path in ("", f"run/{next(iter(client.hub.feeds))}/"):
            browser.open(address + path)
            browser.wait_for("document.documentElement.dataset.ready !== undefined")
            assert browser.complaints() == []
            assert all(url.startswith(address) for url in browser.requests())
        browser.open("about:blank")


def test_a_live_page_draws_new_records_and_lists_new_incidents(
    browser: Browser, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path / "x1")
    run.write_manifest({})
    journal = JournalWriter(run)
    for step, loss in enumerate(falling_loss(300)):
        journal.append(step, {"loss": float(loss)})
    for client in serving(run.root):
        feed = client.hub.feeds[client.id_of("x1")]
        deadline = time.monotonic() + 20
        while feed.totals.last_step < 299 and time.monotonic() < deadline:
            time.sleep(0.05)
        browser.open(f"http://127.0.0.1:{client.port}/")
        browser.wait_for("document.documentElement.dataset.ready !== undefined")
        journal.append(300, {"loss": 9.0})
        journal.event("incident", 300, number=1, onset=300, symptoms=["<b>"], transition="opened")
        browser.wait_for("document.getElementById('live-incidents').children.length === 1")
        assert browser.evaluate("charts.current()[1]") == 300
        assert browser.evaluate("trimtabRun.drawn[0].entry.u.scales.y.max") > 9
        text = browser.evaluate("document.getElementById('live-incidents').textContent")
        assert "incident 1 opened at step 300: <b>" in text
        assert browser.complaints() == []
        browser.open("about:blank")
    journal.close()


def test_the_fleet_sorts_and_filters(browser: Browser, tmp_path: Path) -> None:
    for name, loss in (("a-high", 9.0), ("b-low", 2.0), ("c-middle", 5.0)):
        write_run(block_of({"loss": np.full(50, loss)}), tmp_path / name)
    shown = (
        "[...document.querySelectorAll('#runs tr')].filter(one => !one.hidden)"
        ".map(one => one.children[1].textContent)"
    )
    by_loss = "[...document.querySelectorAll('th button')].find(one => one.textContent === 'loss')"
    for client in serving(tmp_path):
        browser.open(f"http://127.0.0.1:{client.port}/")
        browser.wait_for("document.documentElement.dataset.ready !== undefined")
        browser.evaluate(f"{by_loss}.click()")
        assert browser.evaluate(shown) == ["a-high", "c-middle", "b-low"]
        browser.evaluate(f"{by_loss}.click()")
        assert browser.evaluate(shown) == ["b-low", "c-middle", "a-high"]
        typing = "filter.value = 'ended mid'; filter.dispatchEvent(new Event('input'))"
        browser.evaluate(f"const filter = document.getElementById('filter'); {typing}")
        assert browser.evaluate(shown) == ["c-middle"]
        assert browser.complaints() == []
        browser.open("about:blank")


def test_keys_zoom_all_charts_together(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(dashboard_page(troubled_report()))
    browser.open(page.as_uri())
    views = "JSON.stringify(trimtabRun.drawn.map(one => one.entry.u.scales.x.min))"
    assert browser.evaluate(views) == "[1,1,1]"
    browser.key("n")
    browser.wait_for("charts.current()[0] > 500")
    first = browser.evaluate("trimtabRun.drawn.map(one => one.entry.u.scales.x.min)")
    assert len(set(first)) == 1
    assert first[0] > 500
    browser.key("l")
    assert browser.evaluate("trimtabRun.drawn[0].entry.u.scales.y.distr") == 3
    browser.evaluate("document.getElementById('log').click()")
    assert browser.evaluate("trimtabRun.drawn[0].entry.u.scales.y.distr") == 1
    browser.key("0")
    assert browser.evaluate("charts.current()") == [1, 1200]
    assert browser.complaints() == []


def test_a_click_on_an_incident_opens_its_postmortem(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(dashboard_page(troubled_report()))
    browser.open(page.as_uri())
    assert browser.evaluate("document.getElementById('incident-2').open") is False
    browser.evaluate("document.querySelector('a[href=\"#incident-2\"]').click()")
    browser.wait_for("document.getElementById('incident-2').open")


def test_a_spike_of_one_step_is_seen_at_full_zoom_out(browser: Browser, tmp_path: Path) -> None:
    loss = falling_loss(200_000)
    loss[123_456] = 6.0
    page = tmp_path / "page.html"
    page.write_text(dashboard_page(report_of(block_of({"loss": loss}))))
    browser.open(page.as_uri())
    assert count_line_pixels(browser, 0, 123_457, 6.0) >= 5


def test_any_run_is_drawn(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for seed in range(20):
        report = dataclasses.replace(troubled_report(), block=odd_run(seed), incidents=())
        page.write_text(dashboard_page(report))
        browser.open(page.as_uri())
        browser.wait_for("document.documentElement.dataset.ready !== undefined")
        browser.key("l")
        browser.key("+")
        assert browser.complaints() == [], seed


@pytest.mark.parametrize("width", [400, 1600])
def test_a_page_is_no_wider_than_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    report = report_of(troubled_run(), source="/a/long/path/" + "x" * 300)
    for page in write_pages(report, tmp_path):
        if page.suffix == ".html":
            browser.open(page.as_uri(), width=width)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, page.name


def axe_source() -> str:
    """The text of axe-core, from a cache that npm fills once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trimtab-tests"
    script = cache / "package" / "axe.min.js"
    if not script.exists():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            command = ["npm", "pack", AXE, "--silent"]
            done = subprocess.run(command, cwd=cache, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"npm cannot fetch {AXE}: {error}")
        with tarfile.open(cache / done.stdout.split()[-1]) as archive:
            archive.extractall(cache, filter="data")
    return script.read_text(encoding="utf-8")


def axe_findings(browser: Browser) -> list[str]:
    browser.evaluate(axe_source() + "\n;true")
    found: list[str] = browser.evaluate(
        "axe.run().then(found => found.violations"
        ".map(one => one.id + ': ' + one.nodes.slice(0, 3).map(n => n.html).join(' ')))"
    )
    return found


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing(browser: Browser, tmp_path: Path, dark: bool) -> None:
    for page in write_pages(troubled_report(), tmp_path):
        if page.suffix == ".html":
            for width in (400, 1600):
                browser.open(page.as_uri(), dark=dark, width=width)
                opening = "for (const one of document.querySelectorAll('details')) one.open = true"
                browser.evaluate(opening)
                assert axe_findings(browser) == [], page.name
    write_run(troubled_run(), tmp_path / "runs" / "a")
    write_run(block_of({"loss": np.full(50, 2.0)}), tmp_path / "runs" / "b")
    for client in serving(tmp_path / "runs"):
        browser.open(f"http://127.0.0.1:{client.port}/", dark=dark)
        browser.wait_for("document.documentElement.dataset.ready !== undefined")
        assert axe_findings(browser) == []
        browser.open("about:blank")
