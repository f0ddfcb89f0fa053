"""Answers of bounded size, and curves of few points."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.jsonable import to_jsonable
from trimtab.explain.comparison import StepWindow
from trimtab.report.brief import fitted

MAX_BYTES = 4000
"""Bytes of an answer. Chosen: about 1,500 tokens, so that an agent can ask a hundred times."""

MAX_SIGNALS, MAX_POINTS = 8, 100
"""Signals in one answer, and pieces of a curve."""

_NAME = 80


def answer_text(values: dict[str, Any], untrusted: Sequence[str] = ()) -> str:
    """Return an answer as JSON of at most `MAX_BYTES`; its longest list is shortened until it fits.

    `untrusted` are the keys whose text comes from the files of a run.
    """
    values = to_jsonable(values)
    named = [key for key in untrusted if values.get(key) not in (None, "", [], {})]
    values |= {"untrusted": named} if named else {}
    while len(text := _encoded(values)) > MAX_BYTES:
        lists = [one for one in _parts(values) if isinstance(one, list) and len(one) > 1]
        if lists:
            longest = max(lists, key=lambda one: len(_encoded(one)))
            del longest[max(len(longest) * 3 // 4, 1) :]
            values["cut"] = True
            continue
        return _encoded({"error": "the answer is too long", "bytes": len(text)})
    return text


def _encoded(values: Any) -> str:
    return json.dumps(values, allow_nan=False, separators=(",", ":"))


def _parts(value: Any) -> list[Any]:
    """Return a value and everything in it."""
    inside = value.values() if isinstance(value, dict) else value
    nested = inside if isinstance(value, dict | list) else ()
    return [value, *(part for one in nested for part in _parts(one))]


def curves(block: Block, names: Sequence[str], window: StepWindow) -> str:
    """Return an answer with signals in a range of steps, with as many points as fit.

    Each curve is cut into pieces, with the lowest and the highest value of each: a spike of one
    step is the highest value of its piece. Values that are not finite are counted.
    """
    block = _rows_in(block, window)
    num_points = min(MAX_POINTS, max(len(block), 1))
    while len(_encoded(shown := _curves(block, names, num_points))) > MAX_BYTES - 50:
        num_points //= 2
    return answer_text(shown, ("signals",))


def _curves(block: Block, names: Sequence[str], num_points: int) -> dict[str, Any]:
    edges = np.linspace(0, len(block), num_points + 1).astype(int)
    pieces = [slice(a, b) for a, b in itertools.pairwise(edges) if b > a]
    return {
        "records": len(block),
        "steps": [int(block.step[piece.start]) for piece in pieces],
        "signals": {fitted(name, _NAME): _curve(block, name, pieces) for name in names},
    }


def _rows_in(block: Block, window: StepWindow) -> Block:
    """Return the records of a range; a run that was restarted has some steps twice."""
    first = block.step.min() if window.first is None else window.first
    last = block.step.max() if window.last is None else window.last
    rows = np.flatnonzero((block.step >= first) & (block.step <= last))
    return block[int(rows[0]) : int(rows[-1]) + 1] if len(rows) else block[:0]


def _curve(block: Block, name: str, pieces: Sequence[slice]) -> dict[str, Any]:
    column = block.column(name)
    low: list[Any] = []
    high: list[Any] = []
    for piece in pieces:
        values = column.values[piece][column.finite[piece]]
        low.append(_short(values.min()) if len(values) else None)
        high.append(_short(values.max()) if len(values) else None)
    nonfinite = np.flatnonzero(column.present & ~column.finite)
    found: dict[str, Any] = {"values": low} if low == high else {"low": low, "high": high}
    if len(nonfinite):
        first = int(block.step[nonfinite[0]])
        found["not_finite"] = {"count": len(nonfinite), "first_step": first}
    return found


def _short(value: float) -> float:
    return float(f"{value:.4g}")
