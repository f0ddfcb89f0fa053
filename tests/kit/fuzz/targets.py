"""Targets: everything that trimtab reads and did not write itself a moment ago."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.kit.fuzz import seeds
from tests.kit.synthetic import troubled_run
from trimtab.checks import check_config
from trimtab.core.config import Config
from trimtab.corpus import ScanOptions, plan_scan, scan
from trimtab.corpus.results import load_result
from trimtab.journal import RunDirectory, read_journal
from trimtab.journal.checkpoints.index import CheckpointIndex
from trimtab.journal.checkpoints.manifest import find_damage, read_manifest
from trimtab.journal.news import read_news
from trimtab.judge import Judge
from trimtab.observe.judge_state import JudgeState
from trimtab.readers import read_log
from trimtab.readers.reading import FORMATS

Read = Callable[[Path], Sequence[str]]
"""Reads the input in a file; returns the notes about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Something that reads."""

    name: str
    file: str
    """Where the input is written, below a folder of the target."""
    read: Read
    seeds: tuple[bytes, ...]
    weight: int = 1
    """How many of the inputs it gets, compared with others."""


def all_targets(folder: Path) -> list[Target]:
    """Every target, with its seeds; `folder` is for files that the seeds are made from."""
    folder.mkdir(parents=True, exist_ok=True)
    logs, tokens = tuple(seeds.logs()), seeds.token_files(folder)
    found = [Target(name="any log", file="log", read=_log, seeds=logs, weight=len(FORMATS))]
    found += [
        Target(name=f"log: {name}", file="log", read=partial(_log, format=name), seeds=logs)
        for name in FORMATS
    ]
    home = "run/trimtab"
    others: list[tuple[str, str, Read, Sequence[bytes]]] = [
        ("config", "plan.toml", _config, seeds.configs()),
        ("config: YAML", "plan.yaml", _config, seeds.configs()),
        ("config: JSON", "plan.json", _config, seeds.configs()),
        ("config: script", "train.sh", _config, seeds.configs()),
        ("journal: sealed", f"{home}/journal/00000000.seg", _journal, seeds.sealed_segments()),
        ("journal: open", f"{home}/journal/00000000.log", _journal, seeds.open_segments()),
        ("journal: notes", f"{home}/notes.log", _notes, seeds.open_segments()),
        ("judge.json", f"{home}/judge.json", _judge_state, seeds.judge_states()),
        ("observer.jsonl", f"{home}/observer.jsonl", _news, seeds.news_files()),
        ("checkpoints.json", f"{home}/checkpoints.json", _checkpoints, seeds.checkpoint_files()),
        ("verdicts.json", f"{home}/verdicts.json", _checkpoints, seeds.verdict_files()),
        ("checkpoint manifest", "trimtab-manifest.json", _manifest, seeds.checkpoint_files()),
        ("corpus result", "result.npz", _result, tokens[".npz"]),
    ]
    others += [
        (f"corpus: {suffix}", f"tokens{suffix}", _tokens, tokens[suffix])
        for suffix in (".bin", ".idx", ".npy", ".jsonl", ".parquet")
    ]
    others.append(("corpus: .arrow", "tokens.arrow", _tokens, tokens[".parquet"]))
    return found + [
        Target(name=name, file=file, read=read, seeds=tuple(whole), weight=2)
        for name, file, read, whole in others
    ]


def _log(path: Path, format: str | None = None) -> Sequence[str]:
    return read_log(path, format=format).notes


def _config(path: Path) -> Sequence[str]:
    return check_config(path).notes


def _journal(path: Path) -> Sequence[str]:
    reading = read_journal(RunDirectory(path.parents[2]))
    for column in reading.block.columns.values():
        column.values.sum()
    return [str(damage) for damage in reading.damage]


def _notes(path: Path) -> Sequence[str]:
    _give(seeds.OLD / "journal" / "00000000.seg", path.parent / "journal" / "00000000.seg")
    return [str(damage) for damage in read_journal(RunDirectory(path.parents[1])).damage]


def _judge_state(path: Path) -> Sequence[str]:
    state = JudgeState(RunDirectory(path.parents[1]))
    if state.load(Judge(Config())):
        state.unjudged(troubled_run()[seeds.RECORDS])
    return ()


def _news(path: Path) -> Sequence[str]:
    return [event.kind for event in read_news(RunDirectory(path.parents[1]))]


def _checkpoints(path: Path) -> Sequence[str]:
    index = CheckpointIndex(path.parent)
    index.candidates()
    return [index.problem] if index.problem else []


def _manifest(path: Path) -> Sequence[str]:
    manifest = read_manifest(path.parent)
    return find_damage(path.parent, manifest, manifest.files)


def _result(path: Path) -> Sequence[str]:
    load_result(path)
    return ()


def _tokens(path: Path) -> Sequence[str]:
    if path.suffix == ".idx":
        path.with_suffix(".bin").write_bytes(bytes(4096))
        path = path.with_suffix(".bin")
    out = path.parent / "stats"
    shutil.rmtree(out, ignore_errors=True)
    scan(plan_scan([path], ScanOptions(separator=0)), out)
    return ()


def _give(source: Path, target: Path) -> None:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
