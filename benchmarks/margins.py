"""What a small GPT does without one or two of its safeguards (`scripts/bench margins FILE`).

FILE is what `trimtab lab margins --out FILE` has trained. Writes docs/margins.svg and a section of
RESULTS.md; docs/margins.md says what it means.
"""

import html
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results import publish, table
from trimtab.lab.margins import (
    NEAR_NATS,
    RATES,
    SAFEGUARDS,
    STEPS,
    Margin,
    frequency_loss,
    grid_corpus,
    left_out_sets,
    margins,
    read_losses,
)

PICTURE = Path(__file__).parent.parent / "docs" / "margins.svg"
SIDE, LABEL, GAP, TOP = 30, 62, 26, 76

STYLE = (
    "text{font:11px sans-serif;fill:#444}.n{font-size:9px;text-anchor:middle}.r{text-anchor:end}"
    "rect{fill:#c0392b}.e{fill:none;stroke:#bbb}.w{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.e{stroke:#555}rect{fill:#ff7b6b}"
    ".e,rect.e{fill:none}.w{fill:#111}}"
)


def main() -> None:
    """Draw the picture and publish the table."""
    path = Path(sys.argv[1])
    losses = read_losses(path)
    corpus = grid_corpus()
    found = margins(losses, corpus)
    PICTURE.write_text(draw(found), encoding="utf-8")
    by_place = {(one.left_out, one.lr): one for one in found}
    rows = []
    for left_out in left_out_sets():
        cells = [by_place.get((left_out, lr)) for lr in RATES]
        shown = ["" if one is None else one.text for one in cells]
        rows.append((" and ".join(left_out) or "nothing", *shown))
    body = (
        f"{len(losses)} runs of {STEPS} steps: a GPT of 4 layers of width 64, 8 windows of 32 "
        "tokens a step. Each cell: runs that failed of those trained, and the mean held-out loss "
        f"of the finite ones. A run failed if it was not finite, or ended within {NEAR_NATS:g} "
        f"nats of the loss of token frequencies, {frequency_loss(corpus):.2f}.\n\n"
        + table(("left out", *(f"rate {lr:g}" for lr in RATES)), rows)
    )
    headlines = [
        (f"{what} left out at {RATES[-1]:g} that fail", f"{failing} of {total}", "a measurement")
        for what, (failing, total) in (
            ("single safeguards", count_failing(found, RATES[-1], 1)),
            ("pairs of safeguards", count_failing(found, RATES[-1], 2)),
        )
    ]
    publish("Margins of a small GPT", "trimtab lab margins", body, headlines)


def count_failing(found: list[Margin], lr: float, number: int) -> tuple[int, int]:
    """Return how many sets of this many safeguards fail in most of their runs, and of how many."""
    sets = [one for one in found if one.lr == lr and len(one.left_out) == number]
    return sum(2 * one.num_failed > len(one.losses) for one in sets), len(sets)


def draw(found: list[Margin]) -> str:
    """Return a triangle for each rate: single safeguards on the diagonal, pairs under it."""
    number = len(SAFEGUARDS)
    width = len(RATES) * (LABEL + number * SIDE + GAP)
    height = TOP + number * SIDE + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f"<style>{STYLE}</style>",
    ]
    for place, lr in enumerate(RATES):
        x = place * (LABEL + number * SIDE + GAP)
        chosen = [one for one in found if one.lr == lr]
        parts.append(f'<g transform="translate({x} 0)">{"".join(_triangle(chosen, lr))}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _triangle(found: list[Margin], lr: float) -> Iterator[str]:
    yield f'<text x="{LABEL}" y="14">learning rate {lr:g}</text>'
    names = list(SAFEGUARDS)
    for place, name in enumerate(names):
        middle = LABEL + place * SIDE + SIDE / 2
        label = html.escape(name)
        yield f'<text class="r" x="{LABEL - 5}" y="{TOP + place * SIDE + 19}">{label}</text>'
        yield f'<text transform="translate({middle + 4} {TOP - 6}) rotate(-60)">{label}</text>'
    for one in found:
        if not one.left_out:
            continue
        row, column = names.index(one.left_out[-1]), names.index(one.left_out[0])
        x, y = LABEL + column * SIDE, TOP + row * SIDE
        share = one.num_failed / len(one.losses)
        size = f'x="{x}" y="{y}" width="{SIDE - 2}" height="{SIDE - 2}"'
        yield f'<rect {size} fill-opacity="{share:.2f}"/><rect class="e" {size}/>'
        finite = [loss for loss in one.losses if math.isfinite(loss)]
        text = f"{sum(finite) / len(finite):.2f}" if finite else "NaN"
        yield f'<text class="n" x="{x + 14}" y="{y + 18}">{text}</text>'


if __name__ == "__main__":
    main()
