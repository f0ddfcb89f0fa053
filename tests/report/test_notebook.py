"""A report in a notebook: its card, its curve, its records, and one line in a REPL."""

import dataclasses
import math
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from tests.kit.synthetic import block_of, falling_loss, troubled_run
from tests.report.test_reports import report_of

from trimtab.core.block import Block, Column, Event
from trimtab.core.card import _STYLE
from trimtab.core.run import Run
from trimtab.diagnosis import diagnose
from trimtab.report.figures import RunCurve
from trimtab.report.run_report import RunReport
from trimtab.report.terminal import report_view

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m'


def parsed(html: str) -> ET.Element:
    """The card as a tree, which it is only if no text of a log has opened or closed a tag."""
    return ET.fromstring(html)


@pytest.fixture(scope="module")
def troubled() -> RunReport:
    return report_of(troubled_run(), notes=["one line was not read"])


def test_the_card_says_what_the_terminal_says(troubled: RunReport) -> None:
    tree = parsed(troubled._repr_html_())
    text = " ".join("".join(tree.itertext()).split())
    assert report_view(troubled, 100)
    for said in (troubled.verdict, "run.csv", "1,200 records, steps 1 to 1,200", "not finite"):
        assert said in text
    for diagnosis in troubled.incidents:
        assert diagnosis.action.instruction in text
        assert diagnosis.root_cause in text
    notes = tree.findall("details")[-1]
    assert [part.text for part in notes] == ["1 note", "one line was not read"]


def test_a_hostile_log_stays_text(troubled: RunReport) -> None:
    block = dataclasses.replace(
        troubled.block, columns={**troubled.block.columns, HOSTILE: troubled.block.column("lr")}
    )
    report = dataclasses.replace(troubled, source=HOSTILE, notes=(HOSTILE,), block=block)
    run = Run(block=block, format=HOSTILE, notes=(HOSTILE,))
    for html in (report._repr_html_(), run._repr_html_()):
        assert {one.tag for one in parsed(html).iter()}.isdisjoint({"script", "img"})
        assert "\x1b" not in html
    assert "\x1b" not in f"{report!r}{report}{run!r}{block!r}"


def test_the_style_reaches_nothing_outside_of_the_card() -> None:
    rules = re.sub(r"@supports\([^{]*\{(.*?\})\}", r"\1", _STYLE)
    selectors = re.findall(r"([^{}]+)\{[^}]*\}", rules)
    assert len(selectors) > 5
    assert all(one.startswith(".trimtab") for one in ",".join(selectors).split(","))


@pytest.mark.parametrize("records", [0, 1, 2, 1_000_000])
def test_the_card_of_any_run_is_small(records: int) -> None:
    loss = falling_loss(records)
    loss[:: max(records // 1000, 2)] = math.nan
    block = block_of({"loss": loss})
    steps = np.linspace(0, max(records - 1, 0), min(records, 5000)).astype(int)
    events = [
        Event(kind="evaluation", tick=int(s), step=int(s), facts={"loss": 2.5}) for s in steps
    ]
    report = RunReport(
        source="long" * 10_000,
        format="csv",
        rules="textbook",
        incidents=(),
        block=dataclasses.replace(block, events=tuple(events)),
        notes=("<" * 1_000_000,) * 1000,
    )
    html = report._repr_html_()
    assert len(html.encode()) < 200_000
    assert "nan" not in html.split("<svg")[1].split("</svg>")[0]


def test_the_card_of_500_incidents_is_small(troubled: RunReport) -> None:
    one = troubled.incidents[0]
    many = tuple(
        dataclasses.replace(
            one,
            incident=dataclasses.replace(one.incident, number=number),
            root_cause=f"{HOSTILE * 50} {number}",
            remedy=f"`{HOSTILE * 50}`" * 2,
            cause=None,
            dismissed=f"{HOSTILE * 50} {number}",
        )
        for number in range(1, 501)
    )
    # Twenty attempts, each of which goes back to the first step.
    block = block_of({"loss": falling_loss(100_000)})
    attempt = np.arange(100_000) // 5000
    block = dataclasses.replace(block, step=block.step - 5000 * attempt, attempt=attempt)
    notes = (HOSTILE * 50,) * 500
    report = dataclasses.replace(troubled, incidents=many, block=block, notes=notes)
    html = report._repr_html_()
    assert len(html.encode()) < 200_000
    assert "less severe incidents are not listed here." in html


@pytest.mark.parametrize(
    ("values", "is_log"),
    [
        ([1e-3, 1.0, 2.0, 1e5, 1.0], True),
        ([1.7e308, -1.7e308, 0.0, 1.0], False),
        ([2.0, 2.0, 2.0], False),
        ([math.nan, math.inf, -math.inf], False),
    ],
)
def test_any_values_give_finite_pixels(values: list[float], is_log: bool) -> None:
    curve = RunCurve.from_report(
        RunReport(
            source="x",
            format="csv",
            rules="textbook",
            incidents=(),
            block=block_of({"loss": np.array(values)}),
        )
    )
    assert curve.y.is_log is is_log
    pixels = "".join(part.get("d", "") for part in parsed(curve.draw()).iter())
    assert "nan" not in pixels
    assert "inf" not in pixels


def test_the_start_of_a_run_is_cut_off_only_where_it_would_flatten_the_rest() -> None:
    def peak(start: float) -> tuple[int, float] | None:
        loss = np.concatenate([np.linspace(start, 3.0, 20), np.linspace(3.0, 2.0, 380)])
        return RunCurve.from_report(report_of(block_of({"loss": loss}))).peak

    assert peak(3.5) is None
    assert peak(11.0) == (1, 11.0)


def test_evaluations_are_points() -> None:
    block = block_of({"loss": falling_loss(100)})
    column = Column.missing(100)
    column.values[[10, 60]], column.present[[10, 60]] = (3.0, 2.5), True
    report = report_of(dataclasses.replace(block, columns={**block.columns, "eval_loss": column}))
    assert RunCurve.from_report(report).evaluations == {11: 3.0, 61: 2.5}
    assert "evaluation" in report._repr_html_()


def test_every_value_is_one_line_in_a_repl(troubled: RunReport) -> None:
    block = troubled.block
    weighed = diagnose(Path(__file__).parents[2] / "examples" / "run.csv")
    values: tuple[object, ...] = (troubled, troubled.incidents, block)
    values += (troubled.incidents[0].incident,)
    values = (*values, *(one.ranking for one in weighed.incidents))
    for value in (*values, block.columns, block.column("loss"), Run(block=block, format="csv")):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 400
    assert repr(troubled) == f"<RunReport of run.csv: {troubled.verdict}>"
    assert str(troubled) == f"run.csv: {troubled.verdict}"
    assert repr(block.column("loss")).startswith("<Column: 1,200 of 1,200 values recorded, 301 not")
    assert repr(block) == "<Block: 1,200 records, steps 1 to 1,200: loss, grad_norm, lr>"
    assert repr(Block.empty()) == "<Block: 0 records: >"


def test_the_curve_is_drawn_by_matplotlib(troubled: RunReport) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    figure, ax = pyplot.subplots()
    assert troubled.plot(ax) is ax
    assert [one.get_text() for one in ax.get_legend().get_texts()] == ["loss", "not finite"]
    figure.canvas.draw()
    pyplot.close(figure)
    pyplot.close(troubled.plot().figure)


def test_without_matplotlib_the_plot_is_the_figure_of_the_card(
    troubled: RunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    svg = RunCurve.from_report(troubled).draw()
    with pytest.warns(UserWarning, match="pip install matplotlib"):
        curve = troubled.plot()
    for html in (curve._repr_html_(), troubled._repr_html_()):
        assert svg in html


def test_the_frame_keeps_nan_and_missing_apart() -> None:
    pandas = pytest.importorskip("pandas")
    loss = Column(
        np.array([1.0, np.nan, np.inf, -np.inf, np.nan]), np.array([True, True, True, True, False])
    )
    frame = report_of(Block.from_columns({"loss": loss}, step=np.arange(5))).to_frame()
    assert list(frame) == ["step", "attempt", "loss"]
    assert [value is pandas.NA for value in frame["loss"]] == [False] * 4 + [True]
    assert math.isnan(frame["loss"][1])
    assert list(frame["loss"][2:4]) == [math.inf, -math.inf]


def test_a_frame_without_pandas_says_what_to_install(
    troubled: RunReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_frame needs pandas: pip install pandas"):
        troubled.to_frame()
