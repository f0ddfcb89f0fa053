"""fairseq: JSON (`--log-format json`, the default under hydra) or `name=value` (`simple`).

    [2026-11-15 10:00:00,000][train_inner][INFO] - {"epoch": 1, "loss": "9.12", "ppl": "556.4", ...}
    2026-11-15 10:00:00 | INFO | train_inner | epoch 001:   100 / 1474 loss=9.12, ppl=556.4, ...

Its criteria divide the loss by log(2): it is in bits, and `ppl` is 2 to its power. Loss and
gradient norm are means over the log interval; the norm is free of the loss scale. `num_updates`
has six digits, so beyond a million updates steps are rounded. The mean over an epoch, printed at
its end, is not read.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from trimtab.core.block import Column
from trimtab.core.signals import EVAL_LOSS, LOSS, STEP_SECONDS
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.table import Table
from trimtab.readers.text.grammar import NUMBER, Fields, Grammar, Line, Place
from trimtab.readers.text.layouts import Pairs
from trimtab.readers.text.parser import text_format
from trimtab.readers.text.windows import mark_window_means

STEP_TIME = "1/ups"

_LOSSES = ("loss", "nll_loss", "valid_loss", "valid_nll_loss")
_SIX_DIGITS = 1_000_000

_decode = json.JSONDecoder(parse_int=float).raw_decode


def finish(table: Table) -> None:
    """Take the loss from bits to nats, and the time of a step from the updates a second."""
    _take_rate(table)
    mark_window_means(table, "loss", "gnorm", "wps", STEP_TIME, step="num_updates")
    base = _base_of_loss(table)
    if base is None:
        table.add_note(
            "fairseq mostly writes its loss in bits; no 'ppl' says whether this one is, so it was "
            "left as it is."
        )
    elif base == 2:
        for name in _LOSSES:
            known = table.meanings.get(name, Alias(signal=name, name=name))
            table.meanings[name] = replace(known, scale=math.log(2))
        table.add_note("'loss' is in bits, as 'ppl' shows; it was multiplied by log(2).")
    if np.nanmax(table.column("num_updates").values, initial=0) > _SIX_DIGITS:
        table.add_note("Steps over a million are printed with six digits, known only roughly.")


def _base_of_loss(table: Table) -> float | None:
    """The base whose powers of the loss make the perplexity; None if it is not known."""
    perplexity = table.column("ppl")
    for name in ("loss", "nll_loss"):
        loss = table.column(name)
        rows = loss.finite & perplexity.finite & (perplexity.values > 1)
        bases = perplexity.values[rows] ** (1 / loss.values[rows])
        for base in (2.0, math.e):
            if len(bases) and abs(np.median(bases) - base) < 0.05:  # rounded to three digits
                return base
    return None


def _take_rate(table: Table) -> None:
    rate = table.column("ups")
    known = rate.finite & (rate.values > 0)
    seconds = np.full(table.num_rows, np.nan)
    seconds[known] = 1 / rate.values[known]
    table.replace(STEP_TIME, Column(seconds, known))


def _json_fields(prefix: str = "") -> Callable[[str], Fields]:
    """Fields of an object; those of an evaluation bring their step along under their prefix."""

    def fields(rest: str) -> Iterator[tuple[str, object]]:
        try:
            found, _ = _decode(rest)
        except (ValueError, RecursionError):
            return
        for name, value in found.items():
            yield (name.removeprefix(prefix) if name.endswith("num_updates") else name), value

    return fields


FAIRSEQ = text_format(
    Grammar(
        name="fairseq",
        trainer="fairseq",
        sign=re.compile(r"train_inner\b.{0,20}\{\"|train_inner \| epoch \d+: +\d+ / \d+ \w+="),
        lines=(
            Line(
                mark="train_inner",
                pattern=re.compile(r"train_inner\b.{0,20}(?=\{\")"),
                fields=_json_fields(),
            ),
            Line(
                mark="train_inner",
                pattern=re.compile(r"train_inner \| epoch \d+: +\d+ / \d+ (?=\w)"),
                fields=Pairs(r"(\w{1,99})=", NUMBER),
            ),
            Line(
                mark='{"epoch": ',
                pattern=re.compile(r"valid\b.{0,20}(?=\{\")"),
                fields=_json_fields("valid_"),
            ),
            Line(
                mark=" subset | ",
                pattern=re.compile(
                    rf"valid on '[^']*' subset \|(?=.* num_updates (?P<num_updates>{NUMBER}))"
                ),
                fields=Pairs(r" (\w{1,99}) ", NUMBER),
                prefix="valid_",
            ),
            Line(
                mark="gradient overflow detected",
                pattern=re.compile("gradient overflow detected"),
                place=Place.BELOW,
                count="n_overflow",
            ),
        ),
        meanings=(
            Alias(signal=STEP, name="num_updates"),
            Alias(signal=LOSS, name="loss"),
            Alias(signal=EVAL_LOSS, name="valid_loss"),
            Alias(signal=STEP_SECONDS, name=STEP_TIME),
            Alias(signal="epochs", name="update"),
        ),
        finish=finish,
    )
)
"""The format."""
