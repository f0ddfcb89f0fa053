"""`trimtab corpus`."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.kit.token_files import make_documents, write_bin, write_jsonl
from typer.testing import CliRunner

from trimtab.cli.main import app


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["corpus", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_a_scan_is_shown_with_its_findings(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_bin(tmp_path / "data" / "t.bin", make_documents())
    out = tmp_path / "stats"
    code, text = run("scan", tmp_path / "data", "--out", out, "--separator", 0)
    assert code == 0
    code, shown = run("show", out)
    assert code == 1
    assert shown == text
    assert "duplicate 3 documents occurred before" in shown
    assert "repeats 1 phrases follow themselves 32 times, 200 tokens" in shown
    assert "a phrase of 5 tokens" in shown
    assert re.search(r"rare \d+ tokens occur 1 to 9 times", shown)
    code, printed = run("show", out, "--json", "--below", 5)
    facts = json.loads(printed)
    assert facts["rare"]["below"] == 5
    assert facts["sources"]["data"]["tokens"] == facts["tokens"]


def test_an_array_of_jobs_and_their_merge(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    np.arange(60_000, dtype=np.uint16).tofile(path)
    out = tmp_path / "stats"
    scan = ("scan", path, "--out", out, "--shard")
    assert run(*scan, "0/2") == (0, "shard 0 of 2 scanned")
    code, text = run("merge", out)
    assert (code, "1 of 2 shards are missing: 1" in text) == (3, True)
    assert run("show", out)[0] == 3
    assert run(*scan, "0/2") == (0, "shard 0 of 2 was scanned before")
    assert run(*scan, "1/2")[0] == 0
    code, text = run("merge", out)
    assert code == 0
    assert "60,000 tokens in 1 files" in text
    assert "documents are not known" in text
    assert run("show", out)[0] == 0  # rare tokens alone are no fault


def test_names_from_the_data_cannot_reach_the_terminal(tmp_path: Path) -> None:
    rows = [{"ids": [1, 2, 3], "from": "\x1b[31m[bold]red"}] * 3
    path = write_jsonl(tmp_path / "t.jsonl", rows)
    code, text = run("scan", path, "--out", tmp_path / "out", "--source-column", "from")
    assert code == 0
    assert "\x1b" not in text
    assert "?[31m[bold]red" in text


def test_tokens_are_shown_as_text_with_the_damage_among_them(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    bad = "".join({0xEF: "ï", 0xBF: "¿", 0xBD: "½"}[byte] for byte in "\ufffd".encode())
    words = {"?": 0, "hello": 1, bad: 2}
    Tokenizer(WordLevel(words, unk_token="?")).save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "t.bin"
    np.array([1, 2, 2], dtype=np.uint16).tofile(path)
    run("scan", path, "--out", tmp_path / "out")
    _, text = run("show", tmp_path / "out", "--tokenizer", tmp_path / "tokenizer.json")
    assert "1 'hello'" in text
    assert "2 tokens with replacement characters" in text
