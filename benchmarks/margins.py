"""What a small GPT does without one or two of its safeguards (`scripts/bench margins FILE`).

FILE is what `trimtab lab margins --out FILE` has trained. Writes docs/margins.svg and a section of
RESULTS.md; docs/margins.md says what it means.
"""

import html
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results import publish, table
from trimtab.lab.corpus.tokens import prepare_corpus
from trimtab.lab.margins import (
    CORPUS,
    LEFT_OUT,
    NEAR_NATS,
    RATES,
    SAFEGUARDS,
    STEPS,
    Margin,
    frequency_loss,
    margins,
    read_losses,
)

PICTURE = Path(__file__).parent.parent / "docs" / "margins.svg"
SIDE, LABEL, GAP, TOP = 30, 62, 26, 76
STYLE = (
    "text{font:11px sans-serif;fill:#444}.n{font-size:9px;text-anchor:middle}.r{text-anchor:end}"
    ".b{fill:#c0392b}.e{fill:none;stroke:#bbb}.f{fill:#fff}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.e{stroke:#555}.f{fill:#fff}}"
)

Margins = dict[tuple[tuple[str, ...], float], Margin]


def main() -> None:
    """Draw the picture and publish the table."""
    corpus, losses = prepare_corpus(CORPUS), read_losses(Path(sys.argv[1]))
    found = margins(losses, corpus)
    PICTURE.write_text(draw(found), encoding="utf-8")
    rows = [
        (" and ".join(one) or "nothing", *(str(found.get((one, lr), "")) for lr in RATES))
        for one in LEFT_OUT
    ]
    body = (
        f"{len(losses)} runs of {STEPS} steps: a GPT of 4 layers of width 64, 8 windows of 32 "
        "tokens a step. Each cell: runs that failed of those trained, and the mean held-out loss "
        f"of the finite ones. A run failed if it was not finite, or ended within {NEAR_NATS:g} "
        f"nats of the loss of token frequencies, {frequency_loss(corpus):.2f}.\n\n"
        + table(("left out", *(f"rate {lr:g}" for lr in RATES)), rows)
    )
    headlines = []
    for number, what in ((1, "single safeguards"), (2, "pairs of safeguards")):
        sets = [m for (one, lr), m in found.items() if len(one) == number and lr == RATES[-1]]
        failing = sum(2 * one.num_failed > len(one.losses) for one in sets)
        title = f"{what} without which training fails at {RATES[-1]:g}"
        headlines.append((title, f"{failing} of {len(sets)}", "a measurement"))
    publish("Margins of a small GPT", "trimtab lab margins", body, headlines)


def draw(found: Margins) -> str:
    """Return a triangle for each rate: single safeguards on the diagonal, pairs under it."""
    side = LABEL + len(SAFEGUARDS) * SIDE + GAP
    size = f"{len(RATES) * side} {TOP + len(SAFEGUARDS) * SIDE + 8}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}">']
    parts.append(f"<style>{STYLE}</style>")
    for place, lr in enumerate(RATES):
        triangle = "".join(_triangle(found, lr))
        parts.append(f'<g transform="translate({place * side} 0)">{triangle}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _triangle(found: Margins, lr: float) -> Iterator[str]:
    yield f'<text x="{LABEL}" y="14">learning rate {lr:g}</text>'
    for place, name in enumerate(SAFEGUARDS):
        middle, label = LABEL + place * SIDE + SIDE / 2, html.escape(name)
        yield f'<text class="r" x="{LABEL - 5}" y="{TOP + place * SIDE + 19}">{label}</text>'
        yield f'<text transform="translate({middle + 4} {TOP - 6}) rotate(-60)">{label}</text>'
    for (left_out, rate), margin in found.items():
        if rate != lr or not left_out:
            continue
        x = LABEL + SAFEGUARDS.index(left_out[0]) * SIDE
        y = TOP + SAFEGUARDS.index(left_out[-1]) * SIDE
        where = f'x="{x}" y="{y}" width="{SIDE - 2}" height="{SIDE - 2}"'
        share = margin.num_failed / len(margin.losses)
        yield f'<rect class="b" {where} fill-opacity="{share:.2f}"/><rect class="e" {where}/>'
        ink = "n f" if share > 0.5 else "n"
        yield f'<text class="{ink}" x="{x + 14}" y="{y + 18}">{margin.mean}</text>'


if __name__ == "__main__":
    main()
