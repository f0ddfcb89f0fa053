"""The order of the data: what is badly shuffled, pockets, and the rows of a step."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.core.errors import CorpusError
from trimtab.corpus import check_order

LENGTH, ROWS = 32, 8


def documents(seed: int = 0) -> np.ndarray:
    """Return rows of 64 long documents, one after the other, each with words of its own."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(64):
        own = random.choice(500, size=60, replace=False)
        words = np.where(random.random((50, LENGTH)) < 0.5, random.choice(own, (50, LENGTH)), 0)
        rows.append(np.where(words, words, random.integers(500, size=(50, LENGTH))))
    return np.concatenate(rows).astype(np.uint16)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["corpus", "order", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_documents_one_after_the_other_are_found_and_shuffled_ones_are_not() -> None:
    rows = documents()
    stored = check_order(rows, ROWS)
    assert not stored.is_shuffled
    assert 2 <= stored.stretch <= 8  # a document is six batches long
    for seed in range(2):
        assert check_order(np.random.default_rng(seed).permutation(rows), ROWS).is_shuffled
    with pytest.raises(CorpusError, match="too few"):
        check_order(rows[:100], ROWS)


def test_a_pocket_is_named() -> None:
    rows = np.random.default_rng(1).permutation(documents())
    rows[100 * ROWS : 104 * ROWS] = np.random.default_rng(2).integers(900, 920, (4 * ROWS, LENGTH))
    found = check_order(rows, ROWS)
    assert found.stretch == 0
    assert found.pockets == ((100, 103),)


def test_the_command_reads_files_in_the_order_of_the_run(tmp_path: Path) -> None:
    rows = documents()
    (tmp_path / "d").mkdir()
    rows[:1000].tofile(tmp_path / "d" / "a.bin")
    np.save(tmp_path / "d" / "b.npy", rows[1000:])
    code, text = run(tmp_path / "d", "--rows", ROWS, "--length", LENGTH)
    assert code == 1
    assert "badly shuffled: batches are alike over" in text
    order = np.random.default_rng(3).permutation(len(rows))
    np.save(tmp_path / "order.npy", order)
    arguments = (tmp_path / "d", "--rows", ROWS, "--length", LENGTH, "--by", tmp_path / "order.npy")
    code, text = run(*arguments)
    assert (code, "well shuffled" in text) == (0, True)


def test_the_rows_of_a_step_are_named_with_what_is_unusual(tmp_path: Path) -> None:
    rows = documents()
    order = np.random.default_rng(3).permutation(len(rows))
    odd = order[40 * ROWS + 2]  # the third row of step 40
    rows[odd] = np.random.default_rng(4).integers(600, 640, LENGTH)
    rows.tofile(tmp_path / "a.bin")
    np.save(tmp_path / "order.npy", order)
    scan = ["corpus", "scan", str(tmp_path / "a.bin"), "--out", str(tmp_path / "stats")]
    assert CliRunner().invoke(app, scan).exit_code == 0
    arguments = (tmp_path / "a.bin", "--rows", ROWS, "--length", LENGTH)
    by = ("--by", tmp_path / "order.npy", "--stats", tmp_path / "stats")
    code, text = run(*arguments, *by, "--step", 40)
    assert code == 1
    assert "step 40: 1 of 8 rows unusual" in text
    assert f"a.bin:{odd * LENGTH} rarity" in text
    assert "rare tokens" in text
    assert run(*arguments, *by, "--step", 41)[0] == 0
    assert run(*arguments, *by, "--step", 400)[0] == 2


@pytest.mark.parametrize("wrong", ["text", "floats", "beyond"])
def test_an_order_that_is_none_is_refused(wrong: str, tmp_path: Path) -> None:
    np.zeros(4096, dtype=np.uint16).tofile(tmp_path / "a.bin")
    path = tmp_path / "order.npy"
    if wrong == "text":
        path.write_text("1 2 3")
    else:
        np.save(path, np.array([0.5]) if wrong == "floats" else np.array([4096]))
    code, text = run(tmp_path / "a.bin", "--rows", 1, "--length", 8, "--by", path)
    assert code == (2 if wrong == "beyond" else 3)
    assert "order" in text
