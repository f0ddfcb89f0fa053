"""Answers of bounded size, and curves of few points."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from trimtab.core.block import Block
from trimtab.core.jsonable import to_jsonable
from trimtab.explain.comparison import StepWindow
from trimtab.report.brief import fitted
from trimtab.report.pages.series import RunLines

MAX_BYTES = 4000
"""Bytes of an answer. Chosen: about 1,500 tokens, so that an agent can ask a hundred times."""

MAX_SIGNALS, MAX_POINTS = 8, 50
"""Signals in one answer, and stretches of a curve, with two points each."""

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
        if not lists:
            return _encoded({"error": "the answer is too long", "bytes": len(text)})
        longest = max(lists, key=lambda one: len(_encoded(one)))
        del longest[max(len(longest) * 3 // 4, 1) :]
        values["cut"] = True
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

    They are the lowest and the highest of each stretch, so that no spike is lost. `not_finite` has
    first and last step of what was not, and whether those steps were repeated later.
    """
    lines = RunLines.of(_rows_in(block, window))
    buckets = MAX_POINTS
    while len(_encoded(shown := _curves(lines, names, buckets))) > MAX_BYTES - 50:
        buckets //= 2
    return answer_text(shown, ("signals",))


def _curves(lines: RunLines, names: Sequence[str], buckets: int) -> dict[str, Any]:
    drawn = {fitted(name, _NAME): lines.line(name, max(buckets, 1)) for name in names}
    signals = {
        name: {"steps": line["x"], "values": line["y"], "not_finite": line.get("nonfinite", [])}
        for name, line in drawn.items()
    }
    return {"records": len(lines.block), "signals": signals if buckets else {}}


def _rows_in(block: Block, window: StepWindow) -> Block:
    """Return the records of a range; a run that was restarted has some steps twice."""
    first = block.step.min() if window.first is None else window.first
    last = block.step.max() if window.last is None else window.last
    rows = np.flatnonzero((block.step >= first) & (block.step <= last))
    return block[int(rows[0]) : int(rows[-1]) + 1] if len(rows) else block[:0]
