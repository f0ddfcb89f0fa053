"""Small whole inputs of every kind."""

import json
from pathlib import Path

import numpy as np

from tests.kit.fuzz.damage import LARGEST
from tests.kit.printed import BY_STEP, LOSSES, STEPS
from tests.kit.synthetic import troubled_run
from tests.kit.text_logs.writers import SAMPLES
from tests.kit.token_files import (
    as_rows,
    make_documents,
    write_bin,
    write_jsonl,
    write_llmc,
    write_megatron,
)
from trimtab._version import __version__
from trimtab.core.block import Event
from trimtab.core.config import Config
from trimtab.corpus import ScanOptions, plan_scan, scan
from trimtab.journal.news import encode_news
from trimtab.judge import Judge

TESTS = Path(__file__).parents[2]
RECORDS = slice(540, 660)
"""The records around a spike."""
OLD = TESTS / "old_runs" / "0.1-last" / "trimtab"


def logs() -> list[bytes]:
    """Logs of every format."""
    files = [path for path in (TESTS / "readers").rglob("fixtures/**/*") if path.is_file()]
    found = [path.read_bytes() for path in files if path.stat().st_size <= LARGEST]
    texts = ["".join(sample.print()[0][:12]) for sample in SAMPLES]
    plain = [
        "step,loss,lr\n1,2.5,nan\n2,inf,0.1\n",
        '{"step": 1, "loss": 2.5}\n{"a": {"b": NaN}}\n',
    ]
    printed = ["".join(map(line, STEPS, LOSSES)) for line in BY_STEP.values()]
    return [*found, *(text.encode() for text in (*texts, *plain, *printed))]


def configs() -> list[bytes]:
    """Training configs of every format."""
    shell = b"torchrun train.py --lr 3e-4 --adam-beta2 0.95 --train-iters 1000 --bf16 \\\n"
    toml = b'[training]\noptimizer = "adamw"\nlr = 0.5\nsteps = 1000\nepsilon = 1e-8\n'
    yaml = b"base_model: m\nlearning_rate: 0.5\nnum_epochs: 3\nwarmup_ratio: 0.1\n"
    hf = json.dumps({"learning_rate": 0.5, "output_dir": "x", "max_steps": 100, "fp16": True})
    files = [path.read_bytes()[:LARGEST] for path in (TESTS / "checks" / "data").iterdir()]
    return [shell, toml, yaml, hf.encode(), *files]


def sealed_segments() -> list[bytes]:
    files = (TESTS / "journal" / "fixtures").rglob("*.seg")
    return [path.read_bytes() for path in (*files, OLD / "journal" / "00000000.seg")]


def open_segments() -> list[bytes]:
    """Open files of journals, and notes."""
    folder = TESTS / "journal" / "fixtures"
    return [path.read_bytes() for path in (*folder.rglob("*.log"), OLD / "manifest.json")]


def judge_states() -> list[bytes]:
    """States of a judge after 40 and after 90 records of the same run."""
    found = []
    for count in (40, 90):
        judge = Judge(Config())
        judge.update(troubled_run()[RECORDS][:count])
        state = {"version": __version__, "step": count, "judge": judge.state_dict()}
        found.append(json.dumps(state).encode())
    return found


def news_files() -> list[bytes]:
    """`observer.jsonl` with an incident and the end of a run."""
    facts = {"transition": "opened", "number": 1, "onset": 3, "symptoms": ["loss spike"]}
    lines = [
        encode_news(Event(kind="incident", tick=4, step=3, facts=facts)),
        encode_news(Event(kind="run status", tick=9, step=8, facts={"status": "died"})),
    ]
    return ["\n".join(lines).encode() + b"\n"]


def verdict_files() -> list[bytes]:
    verdict = {"serial": 0, "verdict": "proven", "reason": "healthy", "in_doubt": False}
    content = {"version": 1, "tick": 9, "checkpoints": {"step-00000081": verdict}}
    return [json.dumps(content).encode()]


def checkpoint_files() -> list[bytes]:
    manifest = OLD / "checkpoints" / "step-00000081" / "trimtab-manifest.json"
    return [(OLD / "checkpoints.json").read_bytes(), manifest.read_bytes()]


def token_files(folder: Path) -> dict[str, list[bytes]]:
    """Token files by their suffix; writes into the folder."""
    documents = make_documents(count=9)
    names = ("raw.bin", "llmc.bin", "megatron.bin", "rows.jsonl", "tokens.npy")
    raw, llmc, megatron, rows, npy = (folder / name for name in names)
    write_bin(raw, documents)
    write_llmc(llmc, documents)
    write_megatron(megatron, documents)
    write_jsonl(rows, as_rows(documents))
    np.save(npy, np.arange(600, dtype=np.uint16))
    found = {
        ".bin": [raw.read_bytes(), llmc.read_bytes()],
        ".idx": [megatron.with_suffix(".idx").read_bytes()],
        ".npy": [npy.read_bytes()],
        ".jsonl": [rows.read_bytes(), b'{"text": "a b c"}\n'],
        ".parquet": [path.read_bytes() for path in (TESTS / "kit").rglob("*.parquet")],
    }
    scan(plan_scan([raw], ScanOptions(separator=0)), folder / "scan")
    found[".npz"] = [path.read_bytes() for path in (folder / "scan").rglob("*.npz")]
    return found
