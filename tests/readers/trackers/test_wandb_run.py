import math
import struct
import zlib
from pathlib import Path

import pytest
from tests.readers.make_fixtures import FIXTURES, make_anew
from tests.readers.shapes import Write, assert_reads, values
from tests.readers.trackers.protobytes import message, varint
from tests.readers.written import ROWS, assert_reads_back

from trimtab.core.errors import UnreadableLog
from trimtab.core.signals import LOSS, Quality
from trimtab.readers import read_log
from trimtab.readers.trackers import wandb as wandb_reader

RUN = FIXTURES / "wandb" / "run-fixture.wandb"
HEADER = b":W&B\xe1\xbe\x00"


def item(name: str, *field: tuple[int, int | float | bytes]) -> tuple[int, bytes]:
    return 1, message((2, name.encode()), *field)


def history(step: int, *items: tuple[int, bytes]) -> bytes:
    return message((1, 7), (2, message(*items, (2, message((1, step))))))


def text(name: str, value: str) -> tuple[int, bytes]:
    return item(name, (16, value.encode()))


def chunks(*records: bytes, kind: int = 1) -> bytes:
    out = b""
    for record in records:
        crc = zlib.crc32(record, zlib.crc32(bytes([kind])))
        out += struct.pack("<IHB", crc, len(record), kind) + record
    return out


def test_an_offline_run() -> None:
    reading = read_log(RUN)
    assert reading.format == "wandb"
    assert RUN.stat().st_size > wandb_reader.BLOCK_BYTES
    assert_reads_back(reading.block, ROWS)
    assert reading.names["step"] == "trainer/global_step"
    assert values(reading.block, "deep/a") == [1.5] * len(ROWS)
    assert reading.block.column("clock").present.all()
    assert "2 rows without a usable step are left out." in reading.notes
    assert not any("amaged" in note or "cut" in note for note in reading.notes)
    assert read_log(RUN.parent).path == RUN


def test_the_real_package_still_writes_so(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    make_anew("wandb", tmp_path)
    assert_reads_back(read_log(tmp_path).block, ROWS)


def test_cut_anywhere_what_comes_before_is_read(write: Write) -> None:
    data = RUN.read_bytes()
    lengths = []
    for end in range(len(data) - 1, len(data) // 2, -1009):
        reading = read_log(write(data[:end]))
        lengths.append(len(reading.block))
        assert_reads_back(reading.block, ROWS[: lengths[-1]])
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] > 2
    reading = read_log(write(data[:-1]))
    assert "1 record cut off at the end is left out." in reading.notes


def test_what_comes_before_a_bad_byte_is_read(write: Write) -> None:
    data = bytearray(RUN.read_bytes())
    place = data.index(b"train/loss", len(data) // 2)
    data[place] ^= 1
    reading = read_log(write(bytes(data)))
    (note,) = [note for note in reading.notes if "bytes after" in note]
    assert int(note.split()[0].replace(",", "")) > len(data) - place
    assert_reads_back(reading.block, ROWS[: len(reading.block)])


def test_damage_at_the_very_start(write: Write) -> None:
    data = b"\x00\x01" + RUN.read_bytes()[2:]
    assert_reads_back(read_log(write(data, "run.wandb")).block, ROWS)


def test_a_first_length_that_is_damaged(write: Write) -> None:
    data = bytearray(RUN.read_bytes())
    data[7 + 4] ^= 0xFF
    with pytest.raises(
        UnreadableLog, match=f"{len(data) - 7:,} bytes after the first damaged length are left out"
    ):
        read_log(write(bytes(data)))


def losses(write: Write, *records: bytes) -> list[float | None]:
    return values(read_log(write(HEADER + chunks(*records))).block, "loss")


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ((16, b"2.5"), 2.5),
        ((16, b"NaN"), math.nan),
        ((16, b'"NaN"'), math.nan),
        ((16, b'"-Infinity"'), -math.inf),
        ((16, b"Infinity"), math.inf),
        ((6, 2.5), 2.5),
        ((5, 5), -3.0),
        ((5, 4), 2.0),
        ((7, b"NaN"), math.nan),
    ],
)
def test_every_way_to_write_a_number(
    write: Write, field: tuple[int, int | float | bytes], wanted: float
) -> None:
    (found,) = losses(write, history(3, item("loss", field)))
    assert found == pytest.approx(wanted, nan_ok=True)


def test_what_is_no_number_is_missing(write: Write) -> None:
    cells = [b"null", b"true", b'"x"', b"[1, 2]", b"9" * 400]
    rows = [(item("loss", (16, cell)), text("lr", "1")) for cell in cells]
    records = [history(step, *items) for step, items in enumerate(rows)]
    assert losses(write, *records, history(9, text("loss", "2.5"))) == [*[None] * 5, 2.5]


def test_a_step_that_only_evaluations_have_does_not_lead(write: Write) -> None:
    records = [history(n, text("loss", str(n))) for n in range(1, 10)]
    records.append(history(10, text("val_loss", "2"), text("global_step", "500")))
    block = read_log(write(HEADER + chunks(*records))).block
    assert block.step.tolist() == list(range(1, 11))
    assert values(block, "global_step")[-1] == 500.0


def test_records_in_several_chunks(write: Write) -> None:
    record = history(3, text("loss", "2.5"))
    parts = [chunks(record[:9], kind=2), chunks(record[9:11], kind=3), chunks(record[11:], kind=4)]
    whole = HEADER + b"".join(parts)
    assert values(read_log(write(whole)).block, "loss") == [2.5]
    after = chunks(history(4, text("loss", "2")))
    lost = HEADER + parts[0] + parts[1] + after
    reading = read_log(write(lost))
    assert reading.block.step.tolist() == [4]
    assert any("the checksum does not fit" in note for note in reading.notes)
    assert read_log(write(HEADER + parts[2] + after)).block.step.tolist() == [4]


def test_room_that_was_never_filled_is_no_damage(write: Write) -> None:
    data = HEADER + chunks(history(3, text("loss", "2.5"))) + b"\0" * 1000
    assert read_log(write(data)).notes == ()


def test_long_records_are_left_out(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_reader, "RECORD_BYTES", 100)
    long = chunks(b"x" * 60, kind=2) + chunks(b"x" * 60, kind=3) + chunks(b"x", kind=4)
    reading = read_log(write(HEADER + long + chunks(history(3, text("loss", "2.5")))))
    assert reading.block.step.tolist() == [3]
    assert "1 record too long to hold metrics is left out." in reading.notes


def test_messages_that_are_none_are_counted(write: Write) -> None:
    bad = [b"\x0b", message((2, b"\x0a\x7f")), varint(2 << 3 | 2) + b"\x7f"]
    reading = read_log(write(HEADER + chunks(*bad, history(3, text("loss", "2.5")))))
    assert any(
        "3 records are left out: the checksum does not fit." in note for note in reading.notes
    )


def test_a_run_that_logged_nothing(write: Write) -> None:
    with pytest.raises(UnreadableLog, match="holds no values"):
        read_log(write(HEADER + chunks(message((1, 1)))))


def test_what_hf_hid_is_found_here_too(write: Write) -> None:
    names = ("loss", "grad_norm", "learning_rate", "epoch", "global_step")
    rows = (("2.5", "1", "0.5", "0.5", "10"), ("0", '"NaN"', "0.5", "0.5", "20"))
    records = [
        history(10, *(text(f"train/{name}", cell) for name, cell in zip(names, row, strict=True)))
        for row in rows
    ]
    reading = read_log(write(HEADER + chunks(*records)))
    assert_reads(reading, "step=10 20; loss=2.5 nan", ...)
    assert reading.block.quality(LOSS) is Quality.INFERRED
