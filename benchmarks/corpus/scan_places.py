"""The same scan in one process, in two, on a Ray cluster, and as jobs that are killed."""

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.kit.ray_cluster import ray_cluster

from benchmarks.corpus.scan_speed import SEPARATOR, write_tokens
from trimtab.corpus import (
    Runner,
    ScanOptions,
    ScanPlan,
    Summary,
    merge_folder,
    plan_scan,
    run_here,
    run_processes,
    run_ray,
    scan,
)

FILES, TOKENS, SHARDS = 4, 2**24, 8


def make_corpus(folder: Path) -> Path:
    """A few files, with repeated phrases across the places where shards are cut."""
    corpus = folder / "corpus"
    corpus.mkdir()
    for index in range(FILES):
        path = corpus / f"{index}.bin"
        write_tokens(path, "uint16", TOKENS)
        tokens = np.memmap(path, dtype=np.uint16, mode="r+")
        for place in range(1, 8):
            start = place * TOKENS // 8 - 100 - index
            tokens[start : start + 400] = np.tile(np.arange(900, 908), 50)
        tokens.flush()
    return corpus


def plan_of(corpus: Path) -> ScanPlan:
    return plan_scan([corpus], ScanOptions(separator=SEPARATOR), num_shards=SHARDS)


def scan_with(plan: ScanPlan, out: Path, runner: Runner) -> tuple[dict[str, Any], float]:
    """The summary of a scan, and its seconds."""
    start = time.monotonic()
    return Summary(result=scan(plan, out, runner=runner)).to_dict(), time.monotonic() - start


def scan_with_kills(corpus: Path, out: Path) -> tuple[dict[str, Any], int, int]:
    """One process per shard, killed at a random moment until it gets through; then a merge."""
    command = [sys.executable, "-m", "trimtab.cli", "corpus", "scan", str(corpus)]
    command += ["--out", str(out), "--separator", str(SEPARATOR)]
    begin = time.monotonic()
    subprocess.run([*command, "--shard", f"0/{SHARDS}", "--out", f"{out}-timed"], check=True)
    usual = time.monotonic() - begin
    delays = random.Random(0)
    kills = runs = 0
    for shard in range(SHARDS):
        # Killed late: while it scans or writes. The last start finds the result there.
        for limit in (delays.uniform(0.5, 1.0) * usual, None, None):
            job = subprocess.Popen(
                [*command, "--shard", f"{shard}/{SHARDS}"], stderr=subprocess.DEVNULL
            )
            runs += 1
            try:
                job.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                job.send_signal(signal.SIGKILL)
                job.wait()
                kills += 1
    return Summary(result=merge_folder(out)).to_dict(), kills, runs


def compare(folder: Path) -> list[list[str]]:
    """The rows of a table: where, seconds, and whether the result is the same."""
    corpus = make_corpus(folder)
    plan = plan_of(corpus)
    expected, seconds = scan_with(plan, folder / "here", run_here)
    rows = [["one process", f"{seconds:.1f}", "-", "-"]]

    def add(name: str, found: dict[str, Any], took: float | None) -> None:
        state = "equal" if found == expected else "DIFFERENT"
        rows.append([name, "-" if took is None else f"{took:.1f}", state, "equal"])

    add("2 processes", *scan_with(plan, folder / "processes", run_processes(2)))
    killed, kills, runs = scan_with_kills(corpus, folder / "jobs")
    add(f"{SHARDS} jobs of an array: {runs} starts, {kills} SIGKILLs", killed, None)
    with ray_cluster(2) as cluster:
        add("Ray, 2 nodes of one core", *scan_with(plan, folder / "ray", run_ray()))
        killer = threading.Timer(1.0, cluster.kill_node, [1])
        killer.start()
        found, took = scan_with(plan, folder / "ray-killed", run_ray())
        killer.join()
        add("Ray, one of 2 nodes killed during the scan", found, took)
    tokens = f"{expected['tokens']:,} tokens, {expected['repeated_runs']} repeated phrases"
    return [[f"{rows[0][0]} ({tokens})", *rows[0][1:]], *rows[1:]]
