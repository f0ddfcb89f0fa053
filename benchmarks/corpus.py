"""Tokens per second of a scan beside a bare `np.bincount`, and 2e9 tokens in bounded memory.

`scripts/bench corpus speed`: some minutes. That a scan has the same result in processes and in jobs
that are killed, and that spreading resumes exactly, is tested in tests/corpus.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.results import publish, table
from trimtab.corpus import ScanOptions, plan_scan
from trimtab.corpus.scanning import scan_shard

TOKENS = 2**26
ROUNDS = 7
SEPARATOR = 0
TRAINING_TOKENS = 15e12
DOCUMENT = 600
"""Mean tokens of a document."""
BARE_CHUNKS = (2**18, 2**20)
VOCABULARIES = {"uint16": 50_304, "uint32": 128_256}


def write_tokens(path: Path, dtype: str, tokens: int) -> None:
    """Token ids with the frequencies of text (Zipf), and a separator after each document."""
    random = np.random.default_rng(0)
    ranks = 1 / np.arange(1, VOCABULARIES[dtype])
    block = 1 + np.searchsorted(np.cumsum(ranks / ranks.sum()), random.random(2**22))
    block[random.integers(0, len(block), size=len(block) // DOCUMENT)] = SEPARATOR
    stored = block.astype(dtype)
    with path.open("wb") as file:
        for start in range(0, tokens, len(stored)):
            # Rolled: documents at the seams differ, the others are duplicates of each other.
            file.write(np.roll(stored, start // 7)[: tokens - start].tobytes())


def bare(path: Path, dtype: str, chunk: int) -> None:
    """Nothing but `np.bincount`."""
    tokens = np.memmap(path, dtype=dtype, mode="r")
    total = np.zeros(max(2**16, VOCABULARIES[dtype]), dtype=np.int64)
    for start in range(0, len(tokens), chunk):
        total += np.bincount(tokens[start : start + chunk], minlength=len(total))


def scanned(path: Path, dtype: str, *, counts_only: bool) -> None:
    """A scan of one shard, without writing its result."""
    options = ScanOptions(dtype=dtype, separator=SEPARATOR, counts_only=counts_only)
    scan_shard(plan_scan([path], options, num_shards=1), 0)


def speeds(dtype: str) -> dict[str, list[float]]:
    """Seconds of processor time of each kind of scan, measured in turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens.bin")
        write_tokens(path, dtype, TOKENS)
        kinds: dict[str, Callable[[], None]] = {
            f"bare, chunks of 2**{chunk.bit_length() - 1}": lambda chunk=chunk: bare(  # type: ignore[misc]
                path, dtype, chunk
            )
            for chunk in BARE_CHUNKS
        }
        kinds["counts"] = lambda: scanned(path, dtype, counts_only=True)
        kinds["all statistics"] = lambda: scanned(path, dtype, counts_only=False)
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, run in kinds.items():
                start = time.process_time()
                run()
                seconds[kind].append(time.process_time() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], kind: str) -> float:
    """The speed of a kind of scan divided by that of the faster bare count, median of rounds."""
    bares = [values for name, values in seconds.items() if name.startswith("bare")]
    fastest = min(bares, key=statistics.median)
    return statistics.median(b / k for b, k in zip(fastest, seconds[kind], strict=True))


def rows(dtype: str) -> tuple[list[list[str]], float]:
    """The rows of a table, and tokens per second and core of all statistics."""
    seconds = speeds(dtype)
    found = []
    for kind, values in seconds.items():
        is_bare = kind.startswith("bare")
        bar = "0.9" if kind == "counts" else "-"
        rate = f"{TOKENS / statistics.median(values) / 1e6:,.0f}"
        found.append([dtype, kind, rate, "-" if is_bare else f"{ratio(seconds, kind):.2f}", bar])
    return found, TOKENS / statistics.median(seconds["all statistics"])


LARGE = 2 * 10**9

_CHILD = """
import json, resource, sys, time
from pathlib import Path
from trimtab.corpus import ScanOptions, plan_scan, scan, Summary
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin, cpu = time.monotonic(), time.process_time()
plan = plan_scan([Path(sys.argv[1])], ScanOptions(separator=0))
result = Summary(result=scan(plan, Path(sys.argv[2])))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = [time.monotonic() - begin, time.process_time() - cpu]
print(json.dumps([result.total("tokens"), plan.num_shards, *seconds, before / 1024, after / 1024]))
"""


def large_file(folder: Path) -> list[float]:
    """Scan 2e9 tokens: tokens, shards, seconds, processor seconds, MB before and at most."""
    path = folder / "large.bin"
    try:
        write_tokens(path, "uint16", LARGE)
        command = [sys.executable, "-c", _CHILD, str(path), str(folder / "out")]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    finally:
        path.unlink(missing_ok=True)
    found: list[float] = json.loads(output)
    return found


def main() -> None:
    """Measure and publish."""
    found, rates = [], {}
    for dtype in ("uint16", "uint32"):
        lines, rates[dtype] = rows(dtype)
        found += lines
    with tempfile.TemporaryDirectory() as folder:
        tokens, shards, seconds, cpu, before, after = large_file(Path(folder))
    hours = TRAINING_TOKENS / rates["uint32"] / 3600
    body = (
        f"{TOKENS:,} tokens with the frequencies of text, from a file in the page cache; medians "
        f"of {ROUNDS} rounds in turn, processor time of one core. The ratio is to the faster bare "
        "count.\n\n"
        + table(["ids", "scan", "million tokens/s", "ratio to bare", "bar"], found)
        + "\n\nOn paper, from these rates: all statistics of 15e12 tokens take "
        f"{hours:,.0f} core-hours as uint32 (60 TB). On 1,000 cores that is "
        f"{60 * hours / 1000:,.1f} minutes, during which 60 TB must arrive at "
        f"{60e3 / (3.6 * hours):,.0f} GB/s; at 10 GB/s reading alone takes "
        f"{60e12 / 10e9 / 60:,.0f} minutes and is the limit.\n\n"
        f"A raw file of 4 GB, uint16, {tokens:,} tokens in {shards} shards: {seconds:.0f} s, "
        f"{cpu:.0f} s of processor time, {before:.0f} MB after imports."
    )
    headlines = [
        (f"memory to scan {tokens:,} tokens", f"{after:.0f} MB", "500 MB"),
        *(
            (f"speed of a scan that counts, {ids}, of a bare np.bincount", share, bar)
            for ids, scan, _, share, bar in found
            if scan == "counts"
        ),
    ]
    publish("Corpus: speed of a scan", "scripts/bench corpus speed", body, headlines)


if __name__ == "__main__":
    main()
