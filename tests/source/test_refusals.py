"""Whatever is no log is refused in a sentence that names it, never by an error of a package."""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

import trimtab


class Anything:
    """Answers to every name with itself."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


class Broken:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("on fire")


def losses() -> Iterator[float]:
    yield 2.5


def closed_file() -> Any:
    file = io.StringIO("loss 2.5\n")
    file.close()
    return file


def circular() -> dict[str, Any]:
    circle: dict[str, Any] = {}
    circle["circle"] = circle
    return circle


def frame(*args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: pytest.importorskip("pandas").DataFrame(*args, **kwargs)


NO_LOG: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: None, "None is no log; give a path, pasted text"),
    "int": (lambda: 5, "an object of type int is no log"),
    "bool": (lambda: True, "an object of type bool is no log"),
    "generator": (losses, "type generator can be read only once; give list"),
    "iterator": (lambda: iter([2.5]), "give list(...) of it"),
    "set": (lambda: {2.5}, "an object of type set is no log"),
    "function": (lambda: len, "is no log"),
    "class": (lambda: dict, "the class dict is no log"),
    "mock": (Mock, "an object of type Mock is no log"),
    "mock of everything": (MagicMock, "does not exist"),
    "answers to everything": (Anything, "Anything gives an object of type Anything when read"),
    "array that cannot be made": (Broken, "type Broken cannot be read: RuntimeError: on fire"),
    "empty list": (list, "type list without anything in it is no log"),
    "empty dict": (dict, "type dict without anything in it is no log"),
    "empty text": (lambda: " \n\n", "an empty str is no log"),
    "no bytes": (lambda: b"", "pasted text is empty (0 bytes)"),
    "path to nowhere": (
        lambda: Path("no/where.csv"),
        "no/where.csv does not exist; check the path",
    ),
    "name of no file": (lambda: "where.csv", "where.csv does not exist; check the path"),
    "one line": (lambda: "step 10 loss 2.5", "'step 10 loss 2.5' is taken for a path"),
    "lines": (lambda: ["step 1 loss 2.5", "step 2 loss 2.4"], "give all of its lines with '\\n'"),
    "long line": (lambda: "x" * 100_000, "xxx...' is taken for a path"),
    "NUL": (lambda: "a\0b", "'a\\x00b' is taken for a path"),
    "NUL in a path": (lambda: Path("a\0b"), "'a\\x00b' is not a path"),
    "address": (lambda: "https://x.org/log", "is an address, and logs are read from files"),
    "pickle": (lambda: b"\x80\x04\x95" * 20, "looks like a Python pickle, which is never opened"),
    "closed file": (closed_file, "StringIO cannot be read: I/O operation on closed file"),
    "two dimensions": (lambda: np.zeros((400, 2)), "type ndarray and of shape (400, 2) does not"),
    "rows of numbers": (lambda: [[0, 2.5], [1, 2.4]], "{'step': a[:, 0], 'loss': a[:, 1]}"),
    "two arrays": (lambda: (np.arange(3), np.ones(3)), "{'step': a[:, 0], 'loss': a[:, 1]}"),
    "complex numbers": (lambda: np.ones(3) * 1j, "no number was recorded in it"),
    "truth values": (lambda: [True, False], "list of 2 losses: 'loss' is a loss column, but no"),
    "nothing but missing": (lambda: [None, None], "all cells are missing"),
    "no loss": (lambda: {"a": [1.0, 2.0]}, "dict of 1 column: no column is known to be the"),
    "in a circle": (circular, "dict holds no series of numbers"),
    "deep": (lambda: {"a": {"b": {"c": [1.0]}}}, "dict: no column is known to be the training"),
    "matrix as a column": (lambda: {"loss": np.ones((3, 3))}, "'loss': a column has one dimension"),
    "frame without anything": (frame(), "DataFrame: there are no rows in it"),
    "frame without rows": (frame({"loss": []}), "DataFrame: there are no rows in it"),
    "frame of words": (frame({"loss": ["a", "b"]}), "the first cell is 'a'"),
    "history that is none": (lambda: {"log_history": 5}, "not a list of dicts"),
}


@pytest.mark.parametrize("what", NO_LOG)
def test_what_is_no_log_is_named(what: str) -> None:
    make, sentence = NO_LOG[what]
    with pytest.raises(trimtab.TrimtabError, match=re.escape(sentence)):
        trimtab.diagnose(make())


def test_a_frame_that_is_not_evaluated_yet() -> None:
    lazy = pytest.importorskip("polars").LazyFrame({"loss": [2.5]})
    with pytest.raises(trimtab.TrimtabError, match=r"LazyFrame holds no rows yet; collect\(\) it"):
        trimtab.diagnose(lazy)


def test_tensors_without_numbers_at_hand() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (torch.zeros(5, device="meta"), torch.ones(3).to_sparse()):
        with pytest.raises(trimtab.TrimtabError, match="an object of type Tensor cannot be read"):
            trimtab.diagnose(tensor)
    with pytest.raises(trimtab.TrimtabError, match=r"of shape \(3, 2\) does not say"):
        trimtab.diagnose(torch.zeros(3, 2))
