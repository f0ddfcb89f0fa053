from pathlib import Path

import pytest

from trimtab.readers import log_file
from trimtab.readers.log_file import LineFile

NUL = "5 NUL bytes, as a crash leaves them, are left out."


@pytest.mark.parametrize("block_bytes", [3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("content", "lines", "notes", "unfinished"),
    [
        (b"a,b\n\nc\n\xc3\xa4\xe2\x82\xac\n", ["a,b", "", "c", "\u00e4\u20ac"], [], False),
        (b"a,b\r\n\r\nc\r\n", ["a,b", "", "c"], [], False),
        (b"a,b\r\rc\r", ["a,b", "", "c"], [], False),
        (b"a\nbcdefghijk", ["a", "bcdefghijk"], [], True),
        (b"\xef\xbb\xbfab\0\0\ncd\n\0\0\0", ["ab", "cd"], [NUL], False),
        ("a\x0cb\u2028c\x85d\n".encode(), ["a\x0cb\u2028c\x85d"], [], False),
        (b"a\xff\xfeb\n", ["a\ufffd\ufffdb"], [], False),
    ],
    ids=["\\n", "\\r\\n", "\\r", "no end", "marks and NUL", "other marks", "no text"],
)
def test_lines_in_blocks_that_cut_them_their_ends_and_characters(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    content: bytes,
    lines: list[str],
    notes: list[str],
    unfinished: bool,
) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "log"
    path.write_bytes(content)
    calls: list[tuple[int, int]] = []
    file = LineFile(path, lambda done, total: calls.append((done, total)))
    assert [line for chunk in file.chunks() for line in chunk] == lines
    assert (file.notes, file.unfinished) == (notes, unfinished)
    assert calls == sorted(calls)
    assert calls[-1] == (len(content), len(content))


@pytest.mark.parametrize("block_bytes", [3, 7, 20])
def test_a_line_that_is_too_long_leaves_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(log_file, "LINE_BYTES", 10)
    path = tmp_path / "log"
    path.write_bytes(b"a\n" + b"x" * 50 + b"\r\nb\n" + b"y" * 50)
    file = LineFile(path)
    assert [line for chunk in file.chunks() for line in chunk] == ["a", "", "b"]
    assert file.notes == ["2 lines of more than 0 MiB are left out."]
