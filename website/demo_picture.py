"""The picture in the README: the two runs of `trimtab demo`, drawn from their journals.

    trimtab demo --out build/demo
    python -m website.demo_picture build/demo/run-1

Writes docs/demo.svg. Its colours follow the reader's light or dark mode.
"""

import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trimtab.core.block import FloatArray
from trimtab.core.escaping import Html, join, tag
from trimtab.core.signals import LOSS
from trimtab.diagnosis import diagnose
from trimtab.lab.demo import FLIP_STEP, MODES, NAN_STEP, STEPS
from trimtab.report.postmortem import in_short

PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"

WIDTH, HEIGHT = 900, 300
LEFT, TOP, CHART_WIDTH, CHART_HEIGHT = 44, 40, 440, 216
TEXT_LEFT, LINE = 520, 17
LOWEST, HIGHEST = 2.5, 7.0
"""Nats, of the axis."""
CHARS = 46

STYLE = Html(
    "text{font:12px system-ui,sans-serif;fill:#1b1f24}.mute{fill:#57606a}"
    ".mono{font:12px ui-monospace,monospace}.rule{stroke:#d8dde3}"
    "polyline{stroke-width:1.5;fill:none}.alone{stroke:#b42318}.guarded{stroke:#1f5fbf}"
    ".alone-text{fill:#b42318}.guarded-text{fill:#1f5fbf}.paper{fill:#fff;stroke:#d8dde3}"
    "@media(prefers-color-scheme:dark){text{fill:#e3e7ec}.mute{fill:#98a2ae}"
    ".rule{stroke:#30373f}.alone{stroke:#ff8272}.guarded{stroke:#74aaff}"
    ".alone-text{fill:#ff8272}.guarded-text{fill:#74aaff}.paper{fill:#14171a;stroke:#30373f}}"
)


def draw(folder: Path) -> str:
    """Return the picture of the two runs in a folder of the demo."""
    reports = [diagnose(folder / mode.value) for mode in MODES]
    alone, guarded = (report.block.column(LOSS).values for report in reports)
    parts = [
        tag("style", STYLE),
        tag("rect", x=0.5, y=0.5, width=WIDTH - 1, height=HEIGHT - 1, rx=8, class_="paper"),
        *_axes(),
        _curve(alone, "alone"),
        _curve(guarded, "guarded"),
        _text(_x(FLIP_STEP + 8), _y(6.5), 'mode="observe": untrained, then NaN', "alone-text"),
        _text(_x(FLIP_STEP + 8), _y(2.75), 'mode="recover"', "guarded-text"),
    ]
    report = reports[1]
    incident = report.incidents[0]
    row = TOP
    parts.append(_text(TEXT_LEFT, row, "The post-mortem of the flipped bit, in short", "mute"))
    for name, text in in_short(incident, report):
        row += 8
        for place, line in enumerate(textwrap.wrap(text, CHARS - 7)):
            row += LINE
            parts.append(_text(TEXT_LEFT, row, f"{name if not place else '':6} {line}", "mono"))
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img"}
    return f"{tag('svg', *parts, xmlns='http://www.w3.org/2000/svg', **size)}\n"


def _axes() -> Iterator[Html]:
    yield _text(LEFT, TOP - 18, f"training loss of a small GPT, nat, step 0 to {STEPS - 1}", "mute")
    for value in range(3, 8):
        y = _y(value)
        yield tag("line", x1=LEFT, x2=LEFT + CHART_WIDTH, y1=y, y2=y, class_="rule")
        yield _text(LEFT - 26, y + 4, str(value), "mute")
    for step, text in ((FLIP_STEP, "bit flips"), (NAN_STEP, "NaN loss")):
        x = _x(step)
        line = tag("line", x1=x, x2=x, y1=TOP, y2=TOP + CHART_HEIGHT, class_="rule")
        yield join([line, _text(x - 30, TOP + CHART_HEIGHT + 18, f"{step}: {text}", "mute")])


def _curve(losses: FloatArray, name: str) -> Html:
    """Return a curve that ends where it is not finite any more; single gaps are left out."""
    last = int(np.flatnonzero(np.isfinite(losses))[-1])
    points = " ".join(
        f"{_x(step):.1f},{_y(float(loss)):.1f}"
        for step, loss in enumerate(losses[: last + 1])
        if math.isfinite(loss)
    )
    return tag("polyline", points=points, class_=name)


def _text(x: float, y: float, text: str, kind: str) -> Html:
    # SVG folds blanks, also in a fixed-width font.
    return tag("text", text, x=f"{x:.0f}", y=f"{y:.0f}", class_=kind, style="white-space:pre")


def _x(step: float) -> float:
    return LEFT + CHART_WIDTH * step / STEPS


def _y(loss: float) -> float:
    return TOP + CHART_HEIGHT * (HIGHEST - loss) / (HIGHEST - LOWEST)


if __name__ == "__main__":
    PICTURE.write_text(draw(Path(sys.argv[1])), encoding="utf-8")
