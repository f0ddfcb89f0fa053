import gzip
import json

import pytest
from tests.kit.text_logs.writers import SAMPLES
from tests.readers.shapes import Write, values
from tests.readers.text.test_samples import assert_same
from tests.readers.trackers.test_hf_state import STATE

from trimtab.core.errors import UnreadableLog
from trimtab.readers import log_file, read_log

ROWS = "step,loss\n" + "".join(f"{step},{3 - step / 1000}\n" for step in range(1000))


@pytest.mark.parametrize("name", ["log.csv.gz", "log.gz", "log.csv"])
@pytest.mark.parametrize("block_bytes", [64, 1 << 20])
def test_a_gzip_log_is_read_like_the_log_in_it(
    write: Write, monkeypatch: pytest.MonkeyPatch, name: str, block_bytes: int
) -> None:
    plain = read_log(write(ROWS))
    monkeypatch.setattr(log_file, "BLOCK_BYTES", block_bytes)
    path = write(gzip.compress(ROWS.encode()), name)
    calls: list[tuple[int, int]] = []
    reading = read_log(path, progress=lambda done, total: calls.append((done, total)))
    assert reading.format == "csv"
    assert values(reading.block, "loss") == values(plain.block, "loss")
    assert reading.notes == ()
    assert calls[-1] == (path.stat().st_size, path.stat().st_size)


def test_every_text_format_may_be_gzip(write: Write) -> None:
    for sample in SAMPLES:
        parts, ink = sample.print()
        reading = read_log(write(gzip.compress("".join(parts).encode()), "log.gz"))
        assert reading.format == sample.format
        assert_same(reading.block, ink)


def test_json_documents_may_be_gzip(write: Write) -> None:
    state = STATE.read_bytes()
    assert read_log(write(gzip.compress(state), "trainer_state.json.gz")).format == "hf"
    rows = [{"step": 1, "loss": 2}]
    assert read_log(write(gzip.compress(json.dumps(rows).encode()))).format == "json"


def test_the_suffix_in_front_of_gz_decides_where_the_content_does_not(write: Write) -> None:
    data = gzip.compress(b'starting up\n{"step": 1, "loss": 2}\n')
    assert read_log(write(data, "log.jsonl.gz")).format == "jsonl"


def test_several_members_and_padding_are_one_log(write: Write) -> None:
    half = len(ROWS) // 2
    data = gzip.compress(ROWS[:half].encode()) + gzip.compress(ROWS[half:].encode()) + b"\0" * 9
    reading = read_log(write(data))
    assert len(reading.block) == 1000
    assert reading.notes == ()


def test_gzip_data_that_is_cut_off_is_read_up_to_the_cut(write: Write) -> None:
    data = gzip.compress(ROWS.encode())
    reading = read_log(write(data[: len(data) // 2]))
    assert 100 < len(reading.block) < 900
    assert values(reading.block, "loss") == [3 - step / 1000 for step in range(len(reading.block))]
    assert "The gzip data is cut off; everything before the cut was read." in reading.notes


def test_gzip_data_with_a_bad_byte_is_read_up_to_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "BLOCK_BYTES", 256)
    first = gzip.compress(ROWS.encode())
    damaged = first + first[:10] + b"\xff" * 100
    reading = read_log(write(damaged))
    assert len(reading.block) == 1000
    assert reading.notes == ("The gzip data is damaged; what comes after is left out.",)


def test_a_decompression_bomb_is_left_early(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "FREE_BYTES", 1 << 20)
    path = write(gzip.compress(b"step,loss\n1,2.5\n" + b"1,2.5\n" * 1_000_000))
    reading = read_log(path)
    assert len(reading.block) < 200_000
    assert "expands to more than 100 times its size" in reading.notes[0]


@pytest.mark.parametrize(
    "content",
    [b"\x1f\x8b", gzip.compress(b"", mtime=0), b"\x1f\x8b" + b"x" * 50],
    ids=["magic alone", "empty", "nonsense"],
)
def test_gzip_without_content(write: Write, content: bytes) -> None:
    with pytest.raises(UnreadableLog, match="holds no gzip data"):
        read_log(write(content))


def test_a_binary_log_has_to_be_unpacked_first(write: Write) -> None:
    data = gzip.compress(b"SQLite format 3\0abc")
    with pytest.raises(UnreadableLog, match=r"gzip data around SQLite .*unpack it first"):
        read_log(write(data, "mlflow.db.gz"))
