"""Every format gives the same statistics, and a file that lies is refused."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.kit.token_files import (
    as_rows,
    flat,
    make_documents,
    write_bin,
    write_jsonl,
    write_llmc,
    write_megatron,
)

from trimtab.core.errors import ConfigError, CorpusError
from trimtab.corpus import ScanOptions, Summary, plan_scan, scan

DOCUMENTS = make_documents()


def scan_path(path: Path, **options: object) -> Summary:
    out = path.parent / f"out-{path.name}"
    return Summary(result=scan(plan_scan([path], ScanOptions(**options)), out))  # type: ignore[arg-type]


def check_documents(found: Summary) -> None:
    """What make_documents puts in is found."""
    tokens = flat(DOCUMENTS, None)
    counts = np.bincount(tokens, minlength=300)[1:]
    assert found.counts[1:300].tolist() == counts.tolist()
    statistics = found.result.statistics
    assert found.total("documents") == len(DOCUMENTS)
    assert statistics.table.duplicates == 3
    assert statistics.table.duplicate_tokens == 2 * len(DOCUMENTS[3]) + len(DOCUMENTS[8])
    assert found.total("repeated_runs") == 1
    assert found.total("repeated_tokens") == 200
    assert found.rare.tolist() == [id for id in range(1, 300) if 0 < counts[id - 1] < 10]
    assert statistics.runs[0][2] == 5


@pytest.mark.parametrize(
    ("write", "dtype", "options"),
    [
        (write_bin, "uint16", {"separator": 0}),
        (write_bin, "uint32", {"separator": 0, "dtype": "uint32"}),
        (write_bin, "int64", {"separator": 0, "dtype": "int64"}),
        (lambda path, documents, dtype: write_llmc(path, documents), "", {"separator": 0}),
        (write_megatron, "uint16", {}),
        (write_megatron, "int32", {}),
    ],
    ids=["raw", "raw uint32", "raw int64", "llm.c", "Megatron", "Megatron int32"],
)
def test_flat_files(
    tmp_path: Path, write: Callable[..., Path], dtype: str, options: dict[str, object]
) -> None:
    check_documents(scan_path(write(tmp_path / "t.bin", DOCUMENTS, dtype), **options))


def test_arrays_of_one_and_two_dimensions(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", flat(DOCUMENTS).astype(np.uint16))
    check_documents(scan_path(tmp_path / "one.npy", separator=0))
    np.save(tmp_path / "two.npy", np.arange(120, dtype=np.uint16).reshape(6, 20) % 40)
    found = scan_path(tmp_path / "two.npy")
    assert found.total("documents") == 6
    assert found.result.statistics.table.duplicates == 4


def test_json_lines_of_ids_cut_into_any_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_jsonl(tmp_path / "t.jsonl", as_rows(DOCUMENTS))
    check_documents(scan_path(path))
    monkeypatch.setattr("trimtab.corpus.row_files.UNIT_BYTES", 777)
    plan = plan_scan([path], num_shards=5)
    check_documents(Summary(result=scan(plan, tmp_path / "five")))


def test_parquet_and_the_arrow_files_of_datasets(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(as_rows(DOCUMENTS))
    data.to_parquet(tmp_path / "t.parquet", batch_size=9)
    check_documents(scan_path(tmp_path / "t.parquet"))
    data.save_to_disk(tmp_path / "saved")
    check_documents(scan_path(tmp_path / "saved"))


def test_text_is_tokenized_and_its_damage_found(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"?": 0, "a": 1, "b": 2, "c": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = ["a b c", "a b", "caf\ufffd a", "cafÃ© b", "a \x01 b", "a b"]
    path = write_jsonl(
        tmp_path / "t.jsonl",
        [{"text": text, "from": "web" if at % 2 else "books"} for at, text in enumerate(texts)],
    )
    with path.open("ab") as file:
        file.write(b'{"text": "broken \xff byte"}\n{"text": "no end\n[1]\n{"text": null}\n')
    with pytest.raises(ConfigError, match="--tokenizer"):
        scan_path(path)
    found = scan_path(path, tokenizer=tmp_path / "tokenizer.json", source_column="from")
    assert found.counts[1:4].tolist() == [5, 5, 1]
    assert found.total("damaged_documents") == 4
    assert found.total("unreadable_rows") == 3
    assert found.result.statistics.table.duplicates == 1
    assert {"books", "web"} <= set(found.result.statistics.sources)
    kinds = [what for *_, what in found.result.statistics.damaged]
    assert kinds[:3] == ["replacement characters", "UTF-8 read as Latin-1", "control characters"]


def test_sources_are_subfolders(tmp_path: Path) -> None:
    for name, seed in (("code", 1), ("prose", 2)):
        (tmp_path / "data" / name).mkdir(parents=True)
        write_bin(tmp_path / "data" / name / "a.bin", make_documents(seed))
    found = scan_path(tmp_path / "data", separator=0)
    assert sorted(found.result.statistics.sources) == ["code", "prose"]
    assert found.to_dict()["sources"]["code"]["tokens"] == len(flat(make_documents(1)))


def test_ids_outside_the_vocabulary_and_tokens_that_never_occur(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    np.array([1, 2, 2, 3, 99, 65_535], dtype=np.uint16).tofile(path)
    found = scan_path(path, vocab_size=10)
    assert found.total("out_of_range") == 2
    assert found.never.tolist() == [0, 4, 5, 6, 7, 8, 9]
    assert found.has_findings


class _Trap:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (self._mark.touch, ())


def test_files_that_lie_are_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    mark = tmp_path_factory.mktemp("trap") / "sprung"
    np.save(tmp_path / "pickle.npy", np.array([_Trap(mark)], dtype=object), allow_pickle=True)
    np.save(tmp_path / "float.npy", np.zeros(4))
    np.save(tmp_path / "cut.npy", np.zeros(400, dtype=np.uint16))
    cut = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(cut[:-10])
    (tmp_path / "odd.bin").write_bytes(b"abc")
    llmc = write_llmc(tmp_path / "llmc.bin", DOCUMENTS)
    llmc.write_bytes(llmc.read_bytes()[:-2])
    write_megatron(tmp_path / "short.bin", DOCUMENTS)
    (tmp_path / "short.bin").write_bytes((tmp_path / "short.bin").read_bytes()[:-4])
    write_megatron(tmp_path / "huge.bin", DOCUMENTS)
    (tmp_path / "huge.idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2**60, 2**60) + bytes(64)
    )
    (tmp_path / "no.parquet").write_bytes(b"PAR1 nothing PAR1")
    (tmp_path / "no.arrow").write_bytes(b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 8)
    (tmp_path / "what.zip").write_bytes(b"PK")
    for name in sorted(path.name for path in tmp_path.iterdir()):
        if not name.endswith(".idx"):
            with pytest.raises(CorpusError, match=name.split(".")[0]):
                scan_path(tmp_path / name)
    assert not mark.exists()
    with pytest.raises(CorpusError, match="does not exist"):
        scan_path(tmp_path / "missing.bin")


def test_an_index_that_points_outside_is_refused(tmp_path: Path) -> None:
    path = write_megatron(tmp_path / "t.bin", DOCUMENTS)
    index = path.with_suffix(".idx")
    data = bytearray(index.read_bytes())
    data[-8:] = struct.pack("<q", 10**12)
    index.write_bytes(bytes(data))
    with pytest.raises(CorpusError, match="damaged"):
        scan_path(path)


def test_a_row_that_is_no_list_of_ids_is_counted_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"ids": [1, 2]}, {"ids": [[1], [2]]}, {"ids": [1.5]}, {"ids": None}, {"ids": [2**40]}]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = scan_path(path)
    assert found.total("unreadable_rows") == 3
    assert found.total("out_of_range") == 1
    assert found.counts.tolist() == [0, 1, 1]
