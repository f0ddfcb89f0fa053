import math
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from tests.readers.make_fixtures import FIXTURES
from tests.readers.shapes import Write, assert_reads, values
from tests.readers.trackers.protobytes import event, message, record, scalar, tensor
from tests.readers.written import FIRST, ROWS, assert_reads_back

from trimtab.core.errors import NoUsableLoss, UnreadableLog
from trimtab.core.signals import LOSS, Quality
from trimtab.readers import read_log

RUN = FIXTURES / "tensorboard"
OLD_STYLE = min(RUN.iterdir())


def test_several_event_files_of_one_run() -> None:
    reading = read_log(RUN)
    assert reading.format == "tensorboard"
    assert_reads_back(reading.block, ROWS)
    assert reading.names["loss"] == "train/loss"
    assert reading.notes == ("The step goes back once, as after a restart.",)
    clock = reading.block.column("clock")
    assert clock.present.all()
    assert (np.diff(clock.values) >= 0).all()
    assert_reads_back(read_log(OLD_STYLE).block, FIRST)


def test_a_bad_byte_is_reported_and_costs_one_value(write: Write) -> None:
    data = bytearray(OLD_STYLE.read_bytes())
    place = data.index(b"train/loss", len(data) // 2)
    data[place] ^= 1
    reading = read_log(write(bytes(data)))
    assert any("1 record is left out: the checksum does not fit." in note for note in reading.notes)
    assert reading.block.column("loss").present.sum() == len(FIRST) - 1


def test_damage_at_the_very_start(write: Write) -> None:
    data = bytearray(OLD_STYLE.read_bytes())
    data[:4] = b"\xff\xff\xff\xff"
    with pytest.raises(
        UnreadableLog, match=f"{len(data):,} bytes after the first damaged length are left out"
    ):
        read_log(write(bytes(data)))


def test_the_folder_above_gives_the_newest_run(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old")):
        shutil.copytree(RUN, tmp_path / "runs" / name)
        for file in (tmp_path / "runs" / name).iterdir():
            os.utime(file, (1e9 - age, 1e9 - age))
    reading = read_log(tmp_path)
    assert reading.path == tmp_path / "runs" / "new"
    assert reading.notes[:2] == (
        "Of the folder, 'runs/new' is read.",
        "It is the newest of 2 such logs; not read: 'runs/old'.",
    )


def losses(write: Write, *events: bytes) -> list[float | None]:
    return values(read_log(write(b"".join(map(record, events)))).block, "loss")


@pytest.mark.parametrize(
    "fields",
    [
        ((1, 1), (2, b""), (4, struct.pack("<f", 2.5))),
        ((1, 2), (2, b""), (4, struct.pack("<d", 2.5))),
        ((1, 19), (2, b""), (4, struct.pack("<e", 2.5))),
        ((1, 1), (5, struct.pack("<f", 2.5))),
        ((1, 2), (6, 2.5)),
    ],
    ids=["float", "double", "half", "list of floats", "list of doubles"],
)
def test_tensors_by_their_content_or_their_lists(
    write: Write, fields: tuple[tuple[int, int | float | bytes], ...]
) -> None:
    value = tensor("loss", *fields, suffix=message((9, b"\x0a\x00")))
    assert losses(write, event(1, value), event(2, value)) == [2.5, 2.5]


def test_tensors_that_are_no_scalars_are_none(write: Write) -> None:
    two = message((2, message((1, 2))))
    one = message((2, message((1, 1))))
    eight = struct.pack("<2f", 1.0, 2.0)
    assert losses(
        write,
        event(1, tensor("loss", (1, 1), (2, two), (4, eight))),
        event(2, tensor("loss", (1, 1), (2, one), (4, eight[:4]))),
        event(3, tensor("loss", (1, 7), (8, b"text"))),
        event(4, tensor("loss", (1, 3), (7, b"\x07\x08"))),
        event(5, message((1, b"loss"), (5, b"histogram"))),
        event(6, scalar("loss", 3.0)),
    ) == [1.0, 3.0]


def test_several_values_fields_in_another_order_and_unknown_ones(write: Write) -> None:
    summary = message((1, scalar("loss", 2.5)), (1, scalar("lr", 0.5)))
    shuffled = message((99, b"x"), (5, summary), (2, 7), (1, 1.7e9))
    assert_reads(read_log(write(record(shuffled))), "step=7; loss=2.5; lr=0.5; clock=1.7e9")


def test_steps_that_are_negative_and_times_that_are_none(write: Write) -> None:
    events = [event(step, scalar("loss", 1.0), time=0.0) for step in (-3, 0, 2**40)]
    block = read_log(write(b"".join(map(record, events)))).block
    assert block.step.tolist() == [-3, 0, 2**40]
    assert "clock" not in block.columns


def test_messages_that_are_none_are_counted(write: Write) -> None:
    bad = [b"\xff", b"\x0b", message((5, b"\x0a\x7f")), b"\x80" * 11, b"\x2a\xff\x01"]
    reading = read_log(write(b"".join(map(record, [*bad, event(1, scalar("loss", 2.5))]))))
    assert values(reading.block, "loss") == [2.5]
    assert any(
        f"{len(bad)} records are left out: the checksum does not fit." in note
        for note in reading.notes
    )


def test_files_without_scalars(write: Write) -> None:
    with pytest.raises(UnreadableLog, match="holds no values"):
        read_log(write(record(message((1, 1.7e9), (3, b"brain.Event:2")))))
    with pytest.raises(UnreadableLog, match=r"1 record cut off at the end is left out\."):
        read_log(write(record(event(1, scalar("loss", 2.5)))[:-1]))
    with pytest.raises(NoUsableLoss, match="'accuracy'"):
        read_log(write(record(event(1, scalar("accuracy", 2.5)))))


def test_files_that_were_written_at_the_same_time_are_merged(tmp_path: Path) -> None:
    for file, steps in (("a", (1, 3)), ("b", (2, 4))):
        events = [event(step, scalar("loss", step), time=1e9 + step) for step in steps]
        (tmp_path / f"tfevents.{file}").write_bytes(b"".join(map(record, events)))
    reading = read_log(tmp_path)
    assert reading.block.step.tolist() == [1, 2, 3, 4]
    assert any("ordered by the clock" in note for note in reading.notes)


def test_what_hf_hid_is_found_here_too(write: Write) -> None:
    names = ("loss", "grad_norm", "learning_rate", "epoch")
    events = [
        event(step, *(scalar(f"train/{name}", x) for name, x in zip(names, row, strict=True)))
        for step, row in ((10, (2.5, 1.0, 0.5, 0.5)), (20, (0.0, math.nan, 0.5, 0.5)))
    ]
    reading = read_log(write(b"".join(map(record, events))))
    assert_reads(reading, "step=10 20; loss=2.5 nan", ...)
    assert reading.block.quality(LOSS) is Quality.INFERRED
