import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples
from tests.readers.shapes import Write
from tests.readers.trackers.protobytes import checksum, record

from trimtab.readers.trackers import tfrecord
from trimtab.readers.trackers.protowire import Damage
from trimtab.readers.trackers.tfrecord import masked_crcs, read_records

PAYLOADS = [b"", b"a", b"bc", b"d" * 7, b"e" * 300, b"f" * 31, b"g"]


def silent(done: int, total: int) -> None:
    assert 0 <= done <= total


def read(path: Path) -> tuple[list[bytes], Damage]:
    damage = Damage()
    payloads = [
        records.data[start:end]
        for records in read_records(path, silent, damage)
        for start, end in zip(records.starts, records.ends, strict=True)
    ]
    return payloads, damage


@given(st.lists(st.binary(max_size=70), max_size=20))
def test_checksums_are_those_of_the_definition(pieces: list[bytes]) -> None:
    data = np.frombuffer(b"".join(pieces), dtype=np.uint8)
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    wanted = [int.from_bytes(checksum(piece), "little") for piece in pieces]
    assert masked_crcs(data, starts, lengths).tolist() == wanted


@pytest.mark.parametrize("chunk", [1, 13, 100, 1 << 20])
def test_all_records_are_read_and_a_cut_tail_costs_the_last(
    write: Write, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(tfrecord, "CHUNK_BYTES", chunk)
    whole = b"".join(map(record, PAYLOADS))
    assert read(write(whole)) == (PAYLOADS, Damage())
    for cut in range(1, len(record(PAYLOADS[-1]))):
        assert read(write(whole[:-cut])) == (PAYLOADS[:-1], Damage(num_cut=1))


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_a_bad_byte_costs_its_record_and_in_a_length_what_follows(
    write: Write, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(tfrecord, "CHUNK_BYTES", chunk)
    whole = b"".join(map(record, PAYLOADS))
    starts = np.cumsum([0, *(len(record(payload)) for payload in PAYLOADS)])
    for place in range(0, len(whole), 7):
        data = bytearray(whole)
        data[place] ^= 0x55
        found = read(write(bytes(data)))
        hit = int(np.searchsorted(starts, place, side="right")) - 1
        if place - starts[hit] < 12:
            assert found == (PAYLOADS[:hit], Damage(num_lost_bytes=len(whole) - int(starts[hit])))
        else:
            assert found == ([*PAYLOADS[:hit], *PAYLOADS[hit + 1 :]], Damage(num_bad=1))


def test_a_length_is_not_believed_and_a_long_record_passed_over(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = (1 << 60).to_bytes(8, "little")
    lie = length + checksum(length)
    assert read(write(record(b"a") + lie + record(b"b"))) == ([b"a"], Damage(num_cut=1))
    monkeypatch.setattr(tfrecord, "CHUNK_BYTES", 64)
    monkeypatch.setattr(tfrecord, "RECORD_BYTES", 200)
    path = write(b"".join(map(record, [b"a", b"x" * 5000, b"b"])))
    assert read(path) == ([b"a", b"b"], Damage(num_long=1))


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200), st.integers(1, 50))
def test_random_bytes_hold_no_records(data: bytes, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(data)
        with mock.patch.object(tfrecord, "CHUNK_BYTES", chunk):
            payloads, _ = read(path)
    assert payloads == []
