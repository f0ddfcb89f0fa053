import os
import pickle
from pathlib import Path

import pytest
from tests.readers.shapes import Write

from trimtab.core.errors import LogError, UnreadableLog
from trimtab.core.run import Run
from trimtab.readers import log_file, read_log
from trimtab.readers.reading import FORMATS


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "log.txt", "log"])
def test_content_beats_suffix(write: Write, name: str) -> None:
    assert read_log(write('{"step": 1, "loss": 2}\n', name)).format == "jsonl"
    assert read_log(write("step,loss\n1,2\n", name)).format == "csv"


def test_the_suffix_decides_where_the_content_does_not(write: Write) -> None:
    text = 'starting up\n{"step": 1, "loss": 2}\n'
    assert read_log(write(text, "log.JSONL")).format == "jsonl"
    assert read_log(write(text, "log.txt")).format == "text"


def test_the_format_can_be_given(write: Write) -> None:
    path = write('starting up\n{"step": 1, "loss": 2}\n', "log.txt")
    assert isinstance(read_log(str(path), format="jsonl"), Run)
    with pytest.raises(LogError):
        read_log(path, format="csv")


def test_progress_is_reported(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    path = write("step,loss\n" + "1,2.5\n" * 10_000)
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 1 << 14)
    read_log(path, progress=lambda done, total: calls.append((done, total)))
    size = path.stat().st_size
    assert len(calls) == 4
    assert calls[-1] == (size, size)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b" \n\t\r\n", "begins with ''"),
        (b"\xef\xbb\xbf", "begins with '"),
        (b"\0" * 100, "binary data, it begins with NUL bytes"),
        (pickle.dumps({"loss": 1}), "a Python pickle, which is never opened"),
        (b"PK\x03\x04abc", "a zip archive"),
        (b"\x28\xb5\x2f\xfdabc", "zstd data; unpack it first"),
        (b"PAR1abc", "a Parquet file; in Python"),
        (b"PK\x03\x04...[Content_Types].xml", "an Excel workbook; save the sheet as CSV"),
        (b"\n<!DOCTYPE html>\n<p>loss 1", "a web page; of a chart of W&B, download the CSV"),
        (b"SQLite format 3\0abc", "an SQLite database"),
        (b"\x18\0\0\0\0\0\0\0\xa3\x7f\x4b", "binary data, it begins with the bytes 18 00"),
        (b"epoch 1 done\nepoch 2 done\n", "name the loss with --loss\n.*'epoch 1 done', 2 like it"),
        (b"no numbers\nat all\n", "formats for --format: csv, .*, jsonl, "),
    ],
)
def test_files_that_are_no_logs(write: Write, content: bytes, message: str) -> None:
    with pytest.raises(UnreadableLog, match=message):
        read_log(write(content, "log.txt"))
    for name in ("log.csv", "log.jsonl"):
        with pytest.raises(LogError):
            read_log(write(content, name))


def test_a_sparse_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sparse.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnreadableLog, match="NUL bytes"):
        read_log(path)


def test_an_address_is_shown_as_it_was_given() -> None:
    with pytest.raises(UnreadableLog, match=r"https://example\.org/a is an address"):
        read_log("https://example.org/a")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match=r"nothing\.csv does not exist; check the path"):
        read_log(tmp_path / "nothing.csv")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnreadableLog, match="cannot be read: Not a directory"):
        read_log(tmp_path / "file" / "log.csv")
    with pytest.raises(UnreadableLog, match="is not a path"):
        read_log("a\0b")


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(UnreadableLog, match=r"without a log of a known tracker \(1 files"):
        read_log(tmp_path)
    with pytest.raises(UnreadableLog, match="without a log of the format hf"):
        read_log(tmp_path, format="hf")
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(UnreadableLog, match=r"notes\.txt begins with 'nothing'"):
        read_log(tmp_path)


def test_a_run_is_named_after_the_file(write: Write) -> None:
    path = write("step,loss\n1,2\n", "a#b.csv")
    assert len(read_log(path).block) == 1
    with pytest.raises(UnreadableLog, match="holds one run; leave out the run 'x'"):
        read_log(f"{path}#x")
    with pytest.raises(UnreadableLog, match="does not exist"):
        read_log(f"{path.parent}/absent.csv#x")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(UnreadableLog, match="is a device or a pipe"):
        read_log(tmp_path / "pipe.csv")


def test_permission_denied(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write("step,loss\n1,2\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UnreadableLog, match="cannot be read: Permission denied"):
        read_log(path)


def test_nothing_is_unpickled(write: Write, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    for format in (None, *FORMATS):
        with pytest.raises(LogError):
            read_log(write(pickle.dumps(Trap())), format=format)
    assert not (tmp_path / "sprung").exists()
