"""The text of the standard library: labels, order, and files that cannot be read."""

import ast
import base64
from pathlib import Path

import pytest

from trimtab.core.errors import LabError
from trimtab.lab.corpus.text import Document, Source, documents_of, library_files

ALL = 2**40


def library(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def documents(max_bytes: int = ALL, root: Path | None = None) -> list[Document]:
    files = library_files(max_bytes, root)
    return [document for place, file in enumerate(files) for document in documents_of(file, place)]


def test_docstrings_are_prose_and_the_rest_is_code(tmp_path: Path) -> None:
    text = (
        '"""Module."""\n'
        "import os\n\n\n"
        "class A:\n"
        '    """Class.\n\n    More.\n    """\n\n'
        "    def f(self):\n"
        "        '''Method.'''\n"
        "        return '''not a docstring'''\n\n\n"
        'def g(): "beside"\n'
    )
    # The first file of a listing is held out; garbage comes from the second.
    code, prose = documents(root=library(tmp_path, module=text))
    assert (code.source, prose.source) == (Source.CODE, Source.PROSE)
    assert code.held_out
    assert prose.text == "Module.\n\nClass.\n\nMore.\n\nMethod.\n\nbeside"
    assert code.text == (
        "import os\n\n\n"
        "class A:\n\n"
        "    def f(self):\n"
        "        return '''not a docstring'''\n\n\n"
        'def g(): "beside"\n'
    )
    ast.parse(code.text)


def test_garbage_is_base64_minified_and_repeated(tmp_path: Path) -> None:
    code = "x = 1  # one\ny = [x, 2]\n"
    root = library(tmp_path, one=code, two=code)
    encoded, dense, repeated = (d.text for d in documents(root=root) if d.source is Source.GARBAGE)
    assert base64.b64decode(encoded).decode() == code
    assert dense == "x=1;y=[x,2]"
    assert repeated.startswith(code + code + code)


def test_unreadable_files_are_skipped(tmp_path: Path) -> None:
    root = library(tmp_path, good="x = 1\n", broken="def f(:\n", empty="", nul="x = '\0'\n")
    (root / "latin.py").write_bytes(b"x = '\xe9'\n")
    (root / "cookie.py").write_bytes(b"# coding: no-such-encoding\n")
    (root / "dangling.py").symlink_to(root / "nowhere.py")
    (root / "escape.py").write_text("x = '\\d'\n")  # warns when it is parsed
    texts = {d.text for d in documents(root=root) if d.source is Source.CODE}
    assert texts == {"x = 1\n", "x = '\\d'\n"}


def test_a_library_without_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no Python source"):
        library_files(ALL, tmp_path)
