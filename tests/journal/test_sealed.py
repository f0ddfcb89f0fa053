"""The sealed file: what is asked for is read, and a header is not believed blindly."""

from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab.core.block import Block, Column
from trimtab.journal import sealed_segment as sealed_module
from trimtab.journal.assembly import assemble
from trimtab.journal.header import CHUNK_ROWS, MAGIC, MAX_ROWS, trailer
from trimtab.journal.lines import DamageKind, decode_line, encode_line
from trimtab.journal.sealed_segment import SealedSegment, write_segment

ROWS = 3 * CHUNK_ROWS + 17
ENTRIES = [{"kind": "segment", "schema": 1, "index": 0, "qualities": {}}]


def example(rows: int = ROWS) -> Block:
    rng = np.random.default_rng(0)
    sparse = Column(rng.normal(size=rows), rng.random(rows) < 0.3)
    sparse.values[~sparse.present] = np.nan
    return Block.from_columns(
        {
            "loss": Column.complete(rng.normal(size=rows)),
            "sparse": sparse,
            "norm": Column.complete(rng.normal(size=rows)),
        },
        step=np.arange(rows) // 2,
        tick=np.arange(rows) + 100,
    )


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    path = tmp_path / "00000000.seg"
    write_segment(path, example(), ENTRIES)
    return path


def read(path: Path, signals: set[str] | None = None) -> tuple[Block, list[DamageKind]]:
    file = SealedSegment(path)
    block, damage = assemble([file], signals)
    return block, [found.kind for found in (*file.damage, *damage)]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def rewrite_header(path: Path, change: Any) -> None:
    """Both copies of the header, changed and with good checksums: a lie that looks honest."""
    content = path.read_bytes()
    end = content.index(b"\n", len(MAGIC)) + 1
    entry = decode_line(content[len(MAGIC) : end - 1])
    assert entry is not None
    change(entry)
    data = content[end : -len(trailer(b"")) - (end - len(MAGIC))]
    header = encode_line(entry)
    path.write_bytes(MAGIC + header + data + header + trailer(header))


@pytest.mark.parametrize("rows", [0, 1, CHUNK_ROWS - 1, CHUNK_ROWS, CHUNK_ROWS + 1])
def test_any_number_of_rows(tmp_path: Path, rows: int) -> None:
    path, block = tmp_path / "x.seg", example(rows)
    write_segment(path, block, ENTRIES)
    assert SealedSegment(path).is_whole()
    again, damage = read(path)
    assert damage == []
    assert again.step.tolist() == block.step.tolist()
    for name, column in block.columns.items():
        assert again.columns[name].values.tobytes() == column.values.tobytes()
        assert (again.columns[name].present == column.present).all()


def test_a_complete_column_carries_no_mask(sealed: Path) -> None:
    block, _ = read(sealed)
    assert block.columns["loss"].present.strides == (0,)
    assert block.columns["sparse"].present.strides == (1,)


def test_signals_that_are_not_asked_for_are_not_touched(
    sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes, real = [0], sealed_module._read_into

    def counting(file: FileIO, out: memoryview, at: int) -> int:
        got = real(file, out, at)
        read_bytes[0] += got
        return got

    file = SealedSegment(sealed)
    monkeypatch.setattr(sealed_module, "_read_into", counting)
    block, damage = assemble([file], {"loss", "never recorded"})
    assert list(block.columns) == ["loss"]
    assert damage == []
    assert read_bytes[0] == 2 * 8 * ROWS, "one signal, and the steps, which are no range"


@pytest.mark.parametrize("where", ["front", "end", "magic", "trailer"])
def test_a_hole_in_one_header_costs_nothing(sealed: Path, where: str) -> None:
    size = sealed.stat().st_size
    length = sealed.read_bytes().index(b"\n", len(MAGIC)) + 1 - len(MAGIC)
    at = {"front": 20, "end": size - length, "magic": 0, "trailer": size - 16}[where]
    overwrite(sealed, at, bytes(16 if where == "trailer" else 8))
    block, damage = read(sealed)
    assert len(block) == ROWS
    assert block.columns["loss"].present.all()
    assert damage == ([DamageKind.DAMAGED_HEADER] if where == "front" else [])
    assert not SealedSegment(sealed).is_whole(), "but the file is not as it was written"


def test_both_headers_damaged_is_an_unreadable_file(sealed: Path) -> None:
    overwrite(sealed, 20, bytes(8))
    overwrite(sealed, sealed.stat().st_size - 100, bytes(8))
    with pytest.raises(ValueError, match="both copies of its header are damaged"):
        SealedSegment(sealed)


def place(path: Path, part: tuple[str, str]) -> int:
    file = SealedSegment(path)
    return file._base + file._offsets[part]


def test_a_damaged_chunk_costs_its_rows_of_its_signal(sealed: Path) -> None:
    overwrite(sealed, place(sealed, ("values", "loss")) + 8 * CHUNK_ROWS + 5, b"x")
    file = SealedSegment(sealed)
    block, (damage,) = assemble([file])
    lost = ~block.columns["loss"].present
    assert np.flatnonzero(lost).tolist() == list(range(CHUNK_ROWS, 2 * CHUNK_ROWS))
    assert np.isnan(block.columns["loss"].values[lost]).all()
    assert block.columns["norm"].present.all()
    assert damage.signal == "loss"
    assert damage.ticks == (100 + CHUNK_ROWS, 100 + 2 * CHUNK_ROWS - 1)
    assert "has lost 'loss' in rows 4096 to 8191, ticks 4196 to 8291" in damage.sentence


def test_a_damaged_mask_costs_the_same(sealed: Path) -> None:
    overwrite(sealed, place(sealed, ("mask", "sparse")), b"\xff\x00\xff")
    block, damage = read(sealed)
    assert damage == [DamageKind.DAMAGED_CHUNK]
    assert not block.columns["sparse"].present[:CHUNK_ROWS].any()
    expected = example().columns["sparse"].present[CHUNK_ROWS:]
    assert (block.columns["sparse"].present[CHUNK_ROWS:] == expected).all()


def test_a_damaged_axis_costs_whole_rows(sealed: Path) -> None:
    overwrite(sealed, place(sealed, ("axis", "step")), b"\xff")
    block, damage = read(sealed)
    assert damage == [DamageKind.DAMAGED_AXIS]
    assert block.tick[0] == 100 + CHUNK_ROWS
    assert len(block) == ROWS - CHUNK_ROWS


@pytest.mark.parametrize("cut_out", [True, False])
def test_what_lies_before_a_cut_is_read_and_the_rest_is_reported(
    sealed: Path, cut_out: bool
) -> None:
    content, at = sealed.read_bytes(), place(sealed, ("values", "norm")) + 100
    rest = content[at + 50 :] if cut_out else content[at - 33 :]
    sealed.write_bytes(content[:at] + rest)
    block, damage = read(sealed)
    assert damage == [DamageKind.DAMAGED_CHUNK]
    assert not block.columns["norm"].present.any()
    assert block.columns["loss"].present.all()
    assert not SealedSegment(sealed).is_whole()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda e: e.update(rows=MAX_ROWS + 1), "claims 16777217 rows"),
        (lambda e: e.update(rows=-1), "claims -1 rows"),
        (lambda e: e.update(rows=None), "claims None rows"),
        (lambda e: e.update(rows=ROWS * 2), "axis of an unknown kind"),
        (lambda e: e.update(kind="sealed by others"), "a different layout"),
        (lambda e: e.update(chunk=1), "a different layout"),
        (lambda e: e.update(axes=[]), "lacks an axis"),
        (lambda e: e["axes"].__setitem__(0, ["spline"]), "axis of an unknown kind"),
        (lambda e: e["axes"].__setitem__(0, ["range", 2**63, 1]), "axis of an unknown kind"),
        (lambda e: e["axes"].__setitem__(0, ["range", 2**62, 2**61]), "axis of an unknown kind"),
        (lambda e: e.update(signals=3), "does not list the signals"),
        (lambda e: e.update(signals=[["loss"]]), "not enough values"),
        (lambda e: e["signals"][0][1].pop(), "wrong number of checksums"),
        (lambda e: e["signals"][1][2].pop(), "wrong number of checksums"),
        (lambda e: e.update(signals=[["loss", 3, None]]), "unknown kind"),
        (lambda e: e.update(signals=[e["signals"][0]] * 2), "name every signal exactly once"),
        (lambda e: e["signals"][0].__setitem__(0, 7), "name every signal exactly once"),
        (lambda e: e.update(notes=[-1, 0]), "where the entries are"),
        (lambda e: e.update(last_tick="x"), "schema or the last tick"),
    ],
)
def test_a_header_that_cannot_be_followed_is_refused(
    sealed: Path, change: Any, reason: str
) -> None:
    rewrite_header(sealed, change)
    with pytest.raises(ValueError, match=reason):
        SealedSegment(sealed)


def test_a_header_that_claims_too_much_asks_for_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.seg"
    write_segment(path, Block.empty(), ENTRIES)
    chunks = MAX_ROWS // CHUNK_ROWS
    signals = [[f"s{number}", [0] * chunks, None] for number in range(40)]

    def claim(entry: dict[str, Any]) -> None:
        entry.update(rows=MAX_ROWS, signals=signals, notes=[10**18, 0])

    rewrite_header(path, claim)
    with pytest.raises(ValueError, match=r"claims 10.* bytes, the file has"):
        SealedSegment(path)


def test_a_file_that_goes_between_opening_and_reading_is_reported(sealed: Path) -> None:
    file = SealedSegment(sealed)
    sealed.unlink()
    block, (damage,) = assemble([file])
    assert len(block) == 0
    assert damage.kind is DamageKind.UNREADABLE
