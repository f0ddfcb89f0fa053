"""Random text logs: nothing but LogError escapes, and how they are read never changes anything."""

import tempfile
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.kit.text_logs.writers import SAMPLES, Sample

from trimtab.core.block import Block
from trimtab.core.errors import LogError
from trimtab.readers import log_file, read_log
from trimtab.readers.general import shapes
from trimtab.readers.reading import FORMATS

LINES = sorted(
    {line for sample in SAMPLES for part in sample.print()[0][:20] for line in part.splitlines()}
)
"""Lines of all trainers."""

PIECES = [
    "| ",
    ": ",
    "nan",
    "-inf",
    "1e999",
    "1,2,3",
    "step",
    "\x1b[31m",
    "[rank1]:",
    "\t",
    "{",
    '"',
    "=",
]


def read_text(text: str, format: str | None, block_bytes: int, layouts: int = 4) -> Block:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with (
            mock.patch.object(log_file, "BLOCK_BYTES", block_bytes),
            mock.patch.object(shapes, "MAX_FREQUENT", layouts),
        ):
            return read_log(path, format=format).block


def same(one: Block, other: Block) -> bool:
    return (
        one.step.tolist() == other.step.tolist()
        and one.attempt.tolist() == other.attempt.tolist()
        and set(one.columns) == set(other.columns)
        and all(
            np.array_equal(column.values, other.column(name).values, equal_nan=True)
            and np.array_equal(column.present, other.column(name).present)
            for name, column in one.columns.items()
        )
    )


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The log of a trainer, with lines of others in it, and cut or overwritten in some places."""
    sample: Sample = draw(st.sampled_from(SAMPLES))
    parts = sample.print(seed=draw(st.integers(0, 3)))[0]
    text = "".join(parts[: draw(st.integers(1, len(parts)))])
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(text)))
        piece = draw(st.sampled_from(LINES) | st.sampled_from(PIECES) | st.text(max_size=5))
        text = text[:place] + piece + text[place + draw(st.integers(0, 40)) :]
    return text


@settings(max_examples=examples(100), deadline=None)
@given(damaged(), st.sampled_from([None, *FORMATS]), st.sampled_from([64, 1 << 20]))
def test_damaged_logs_raise_nothing_else(text: str, format: str | None, block_bytes: int) -> None:
    with suppress(LogError):
        block = read_text(text, format, block_bytes)
        assert len(block) <= text.count("\n") + text.count("\r") + 1


@settings(max_examples=examples(100), deadline=None)
@given(damaged(), st.sampled_from([5, 100, 1000]))
def test_how_a_log_is_cut_never_changes_what_is_read(text: str, block_bytes: int) -> None:
    with suppress(LogError):
        format = _format(text)
        assert same(read_text(text, format, 1 << 20), read_text(text, format, block_bytes))


def test_of_two_names_for_a_signal_the_earlier_one_wins_however_the_log_is_cut() -> None:
    text = (
        "iter 10: loss 10.8444, time 425.89ms, mfu -100.00%\n"
        "step    10 | loss: 3.198824 | lr 6.0000e-05 | norm: 0.5524 | dt: 482.48ms | "
        "tok/sec: 1066815.32ter 20: loss 6.4049, time 478.38ms, mfu -100.00%\n"
    )
    whole, cut = (read_text(text, _format(text), size) for size in (1 << 20, 5))
    assert whole.column("step_seconds").values[0] == 0.42589
    assert same(whole, cut)


@settings(max_examples=examples(100), deadline=None)
@given(damaged())
def test_layouts_never_change_what_is_read(text: str) -> None:
    with suppress(LogError):
        format = _format(text)
        assert same(read_text(text, format, 1 << 20), read_text(text, format, 1 << 20, layouts=0))


def _format(text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read_log(path).format
