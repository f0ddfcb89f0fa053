"""Pages without a browser: what is in them, and that text stays text."""

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.kit.synthetic import block_of, falling_loss
from tests.report.pages.hostile import PAYLOADS, hostile_report
from tests.report.test_reports import report_of, troubled_report

from trimtab.core.block import Block, Column
from trimtab.core.escaping import Html, tag
from trimtab.core.incidents import Moment
from trimtab.report.figures import draw_incident
from trimtab.report.incident_files import update_lessons, write_incidents
from trimtab.report.pages.page import json_for_html, render_page
from trimtab.report.pages.run_page import dashboard_page, postmortem_page


class Elements(HTMLParser):
    """The elements and attributes of a page, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    values: dict[str, object] = json.loads(found[1])
    return values


@pytest.fixture(scope="module")
def hostile_pages() -> dict[str, str]:
    report = hostile_report()
    pages = {"dashboard": dashboard_page(report)}
    for found in report.incidents:
        pages[f"postmortem {found.incident.number}"] = postmortem_page(found, report)
    return pages


def test_hostile_text_adds_no_element_and_no_attribute(hostile_pages: dict[str, str]) -> None:
    harmless = troubled_report()
    plain = Elements(dashboard_page(harmless) + postmortem_page(harmless.incidents[0], harmless))
    for page in hostile_pages.values():
        seen = Elements(page)
        assert set(seen.tags) <= {*plain.tags, "rect", "path", "ul"}
        assert seen.tags.count("script") <= 5
        names = {name for name, _ in seen.attributes}
        assert not any(name.startswith("on") for name in names)
        assert not names & {"style", "src", "srcdoc", "action", "data", "background"}
        for name, value in seen.attributes:
            if name == "href":
                assert value is not None
                assert value.startswith("#incident-")


def test_hostile_text_is_shown_as_text(hostile_pages: dict[str, str]) -> None:
    text = "".join(Elements(hostile_pages["dashboard"]).text)
    for payload in PAYLOADS:
        if payload.isprintable():
            assert payload in text


def test_the_policy_names_the_hash_of_every_script_and_style() -> None:
    page = dashboard_page(troubled_report())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    codes = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    codes += re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(codes) == 5
    for code in codes:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_a_page_asks_for_nothing(hostile_pages: dict[str, str]) -> None:
    page = dashboard_page(troubled_report())
    seen = Elements(page)
    assert not {"link", "img", "iframe"} & set(seen.tags)
    assert not {"src"} & {name for name, _ in seen.attributes}


def test_json_cannot_end_its_element() -> None:
    text = json_for_html({"a": "</script><!--\u2028&"})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!--\u2028&"}


def test_text_is_escaped_and_html_is_not() -> None:
    assert tag("b", "<i>", title='"') == '<b title="&quot;">&lt;i&gt;</b>'
    assert tag("b", Html("<i></i>")) == "<b><i></i></b>"
    assert "<title>a &lt;b&gt;</title>" in render_page(title="a <b>", body="")


def test_the_page_of_a_run_has_its_incidents_charts_and_what_is_missing() -> None:
    page = dashboard_page(troubled_report())
    seen = "".join(Elements(page).text)
    assert "2 incidents" in seen
    assert "recovered" in seen
    assert "divergent" in seen
    assert 'href="#incident-1"' in page
    assert 'id="incident-1"' in page
    assert "activations by layer" in seen  # with how to record them
    data = data_of(page)
    titles = [chart["title"] for chart in data["charts"]]  # type: ignore[attr-defined]
    assert titles == ["loss", "gradient norm", "learning rate"]
    assert [span["number"] for span in data["incidents"]] == [1, 2]  # type: ignore[attr-defined]


def test_goodput_is_of_run_directories_as_a_record_of_a_log_may_stand_for_many_steps() -> None:
    log = troubled_report()
    assert "goodput" not in dashboard_page(log)
    page = dashboard_page(dataclasses.replace(log, format="journal"))
    assert "% of 1,200 steps kept" in page
    titles = [chart["title"] for chart in data_of(page)["charts"]]  # type: ignore[attr-defined]
    assert titles[-1] == "goodput, share of steps kept so far"  # lost from the NaN on


def test_a_run_without_incidents_says_so() -> None:
    page = dashboard_page(report_of(block_of({"loss": falling_loss(300)})))
    assert "Healthy: no incident in 300 records." in page


def test_the_postmortem_page_shows_the_summary_then_figures_then_the_rest() -> None:
    report = troubled_report()
    page = postmortem_page(report.incidents[0], report)
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:3] == ["In short", "1 Symptoms", "2 Hypotheses"]
    assert page.index("In short") < page.index("<svg") < page.index("1 Symptoms")
    assert "<script" not in page


def test_a_figure_as_a_file_brings_its_colours_along(tmp_path: Path) -> None:
    report = troubled_report()
    assert "<style>" in draw_incident(report.incidents[0], report.block, is_file=True)
    assert "<style>" not in draw_incident(report.incidents[0], report.block, is_file=False)
    (first, _) = write_incidents(report, tmp_path)
    assert "](incident.svg)" in first.read_text()
    assert {path.name for path in first.parent.iterdir()} == {
        "incident.json",
        "incident.svg",
        "postmortem.html",
        "postmortem.md",
        "verify.toml",
    }


def test_a_page_that_cannot_be_made_does_not_cost_the_postmortems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trimtab.report.postmortem.draw_incident", lambda *_, **__: 1 / 0)
    written = write_incidents(troubled_report(), tmp_path)
    assert len(written) == 2
    assert all("## 7 Lesson" in path.read_text() for path in written)
    assert "no page for incident 1" in caplog.text


ODD = (0.0, -0.0, 1.0, -1.0, 1e-308, 5e-324, 1.7e308, -1.7e308, np.nan, np.inf, -np.inf, 2.5)


def odd_run(seed: int) -> Block:
    """A short run of odd numbers, with steps in any order."""
    rng = np.random.default_rng(seed)
    length = int(rng.integers(1, 60))
    columns = {}
    for name in ("loss", "grad_norm", "lr", "param_norm/a", "activation_rms/x"):
        present = rng.random(length) < rng.random()
        columns[name] = Column(np.where(present, rng.choice(ODD, length), np.nan), present)
    top = int(rng.choice([3, 100, 2**40]))
    return Block.from_columns(columns, step=rng.integers(-5, top, length))


@settings(max_examples=examples(40), deadline=None)
@example(91)  # numbers so large that the room around them overflows
@given(st.integers(0, 2**32))
def test_any_run_has_a_page(seed: int) -> None:
    block = odd_run(seed)
    moment = Moment(step=int(block.step[0]), tick=0, loss=None)
    last = Moment(step=int(block.step[-1]), tick=len(block) - 1, loss=None)
    base = troubled_report()
    first = base.incidents[0]
    incident = dataclasses.replace(first.incident, onset=moment, peak=moment, last=last, end=None)
    found = dataclasses.replace(first, incident=incident)
    page = dashboard_page(dataclasses.replace(base, block=block, incidents=(found,)))
    assert data_of(page)["incidents"]


class TestLessons:
    def test_one_line_per_lesson_and_none_twice(self, tmp_path: Path) -> None:
        report = troubled_report()
        file = update_lessons(report, tmp_path, "x1")
        assert file is not None
        first = file.read_text()
        assert first.count("(x1)") == 2
        assert update_lessons(report, tmp_path, "x1") is None
        update_lessons(report, tmp_path, "x2")
        assert file.read_text().startswith(first.rstrip("\n"))
        assert file.read_text().count("(x2)") == 2

    def test_what_people_wrote_stays(self, tmp_path: Path) -> None:
        file = tmp_path / "LESSONS.md"
        file.write_text("# Ours\n\n- never on a Friday\n")
        update_lessons(troubled_report(), tmp_path, "x1")
        assert "- never on a Friday\n" in file.read_text()

    def test_a_healthy_run_writes_nothing(self, tmp_path: Path) -> None:
        report = report_of(block_of({"loss": falling_loss(300)}))
        assert update_lessons(report, tmp_path, "x1") is None
        assert not any(tmp_path.iterdir())
