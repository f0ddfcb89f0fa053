from pathlib import Path

import pytest

from trimtab.readers import log_file
from trimtab.readers.log_file import LineFile


def read(path: Path) -> tuple[list[str], LineFile]:
    file = LineFile(path, lambda done, total: None)
    return [line for chunk in file.chunks() for line in chunk], file


@pytest.fixture(autouse=True, params=[3, 7, 1 << 20])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with blocks that cut lines, line ends and characters in two."""
    monkeypatch.setattr(log_file, "BLOCK_BYTES", request.param)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_line_end(tmp_path: Path, end: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(end.join(["a,b", "", "c", "\u00e4\u20ac", ""]).encode())
    got, file = read(path)
    assert got == ["a,b", "", "c", "\u00e4\u20ac"]
    assert not file.unfinished


def test_the_last_line_may_have_no_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\nbcdefghijk")
    got, file = read(path)
    assert got == ["a", "bcdefghijk"]
    assert file.unfinished


def test_byte_order_mark_and_nul_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbfab\0\0\ncd\n\0\0\0")
    got, file = read(path)
    assert got == ["ab", "cd"]
    assert file.notes == ["NUL bytes left out, as a crash leaves them: 5."]


def test_other_marks_are_not_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes("a\x0cb\u2028c\x85d\n".encode())
    assert read(path)[0] == ["a\x0cb\u2028c\x85d"]


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\xff\xfeb\n")
    assert read(path)[0] == ["a\ufffd\ufffdb"]


def test_a_line_that_is_too_long_leaves_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A line that is whole within one block is not too long.
    monkeypatch.setattr(log_file, "BLOCK_BYTES", min(log_file.BLOCK_BYTES, 20))
    monkeypatch.setattr(log_file, "LINE_BYTES", 10)
    path = tmp_path / "log"
    path.write_bytes(b"a\n" + b"x" * 50 + b"\r\nb\n" + b"y" * 50)
    got, file = read(path)
    assert got == ["a", "", "b"]
    assert file.notes == ["Lines of more than 0 MiB, left out: 2."]


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"0123456789\n" * 10)
    calls: list[tuple[int, int]] = []
    for _ in LineFile(path, lambda done, total: calls.append((done, total))).chunks():
        pass
    assert calls == sorted(calls)
    assert calls[-1] == (110, 110)
