"""Shards: any number of them, anywhere, killed or not, give the same bytes."""

import itertools
import os
import signal
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.kit import forked
from tests.kit.token_files import make_documents, write_bin, write_megatron

from trimtab.core.errors import CorpusError
from trimtab.corpus import (
    ScanOptions,
    Summary,
    load_result,
    merge_folder,
    plan_scan,
    run_processes,
    scan,
    scan_one,
)
from trimtab.corpus.results import RESULT
from trimtab.corpus.scanning import shard_file

OPTIONS = ScanOptions(separator=0, vocab_size=400)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for seed in range(3):
        write_bin(folder / f"{seed}.bin", make_documents(seed, count=60))
    write_megatron(folder / "mega.bin", make_documents(9))
    return folder


def facts(folder: Path) -> dict[str, object]:
    return Summary(result=load_result(folder / RESULT)).to_dict()


def test_the_result_does_not_depend_on_how_files_are_cut(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan(plan_scan([corpus], OPTIONS, num_shards=1), tmp_path / "whole")
    for unit, chunk, shards in ((1_500, 2**18, 4), (4_001, 2**18, 9), (10**9, 1_300, 2)):
        monkeypatch.setattr("trimtab.corpus.token_files.UNIT", unit)
        monkeypatch.setattr("trimtab.corpus.scanning.CHUNK", chunk)
        out = tmp_path / f"{unit}-{chunk}"
        plan = plan_scan([corpus], OPTIONS, num_shards=shards)
        assert plan.num_shards == shards
        scan(plan, out)
        assert facts(out) == facts(tmp_path / "whole")


def test_every_unit_is_in_one_shard(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trimtab.corpus.token_files.UNIT", 700)
    for shards in (1, 2, 3, 8, 50, 200):
        plan = plan_scan([corpus], OPTIONS, num_shards=shards)
        units = [unit for index in range(shards) for unit in plan.shard(index)]
        assert units == list(plan.units)


def test_processes_give_the_same_file(corpus: Path, tmp_path: Path) -> None:
    plan = plan_scan([corpus], OPTIONS, num_shards=3)
    scan(plan, tmp_path / "here")
    scan(plan, tmp_path / "processes", runner=run_processes(2))
    assert facts(tmp_path / "here") == facts(tmp_path / "processes")


def test_a_finished_shard_is_not_scanned_again_and_a_damaged_one_is(
    corpus: Path, tmp_path: Path
) -> None:
    plan = plan_scan([corpus], OPTIONS, num_shards=3)
    out = tmp_path / "out"
    assert all(scan_one(plan, index, out) for index in range(3))
    expected = merge_folder(out)
    assert not scan_one(plan, 1, out)
    path = shard_file(out, plan, 1)
    path.write_bytes(path.read_bytes()[:-200])
    assert scan_one(plan, 1, out)
    assert merge_folder(out).statistics.sources.keys() == expected.statistics.sources.keys()
    assert scan(plan, out).statistics.lengths.tolist() == expected.statistics.lengths.tolist()


def test_shards_of_other_files_or_settings_are_not_added_up(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = plan_scan([corpus], OPTIONS, num_shards=2)
    scan_one(plan, 0, out)
    with pytest.raises(CorpusError, match="1 of 2 shards are missing: 1"):
        merge_folder(out)
    other = plan_scan([corpus], ScanOptions(separator=1), num_shards=2)
    with pytest.raises(CorpusError, match="other files or settings"):
        scan_one(other, 0, out)
    scan_one(other, 1, out)
    with pytest.raises(CorpusError, match="other files or settings"):
        merge_folder(out)


def test_a_copy_of_a_shard_is_not_counted_twice(corpus: Path, tmp_path: Path) -> None:
    plan = plan_scan([corpus], OPTIONS, num_shards=2)
    scan(plan, tmp_path / "out")
    copy = tmp_path / "out" / "shard-00009-of-00002.npz"
    copy.write_bytes(shard_file(tmp_path / "out", plan, 0).read_bytes())
    with pytest.raises(CorpusError, match="added up before"):
        merge_folder(tmp_path / "out")


def test_a_result_with_a_pickle_or_packed_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "pickle.npz", facts=np.array([{}], dtype=object))
    np.savez_compressed(tmp_path / "packed.npz", facts=np.zeros(10_000))
    (tmp_path / "text.npz").write_text("no")
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    for path in tmp_path.iterdir():
        with pytest.raises(CorpusError, match="not a readable result"):
            load_result(path)


def test_a_file_that_is_cut_while_it_is_scanned_is_reported(tmp_path: Path) -> None:
    path = write_bin(tmp_path / "t.bin", make_documents())
    plan = plan_scan([path], OPTIONS)
    os.truncate(path, 100)
    with pytest.raises(CorpusError, match="now has 100"):
        scan(plan, tmp_path / "out")


@pytest.mark.slow
def test_killed_jobs_of_an_array_that_run_again_count_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    documents = np.random.default_rng(0).integers(0, 2_000, size=6_000_000)
    documents.astype(np.uint16).tofile(path)
    options, shards = ScanOptions(separator=0), 3
    expected = scan(plan_scan([path], options, num_shards=shards), tmp_path / "expected")
    out = tmp_path / "out"
    command = ["-m", "trimtab.cli", "corpus", "scan", str(path), "--out", str(out)]
    command += ["--separator", "0", "--shard"]
    killed = 0
    for index in range(shards):  # killed later and later, until it ends before
        for tenths in itertools.count(1, 4):
            job = forked.Forked([*command, f"{index}/{shards}"])
            try:
                assert job.wait(timeout=tenths / 10) == 0
                break
            except subprocess.TimeoutExpired:
                job.kill()
                killed += job.wait() == -signal.SIGKILL
    assert killed >= shards
    forked.run(*command, f"1/{shards}")  # the scheduler starts it once too often
    found = merge_folder(out)
    assert facts(out) == facts(tmp_path / "expected")
    assert found.digest == expected.digest
