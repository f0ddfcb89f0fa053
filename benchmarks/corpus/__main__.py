"""`scripts/bench corpus speed|scans`: some minutes each; `scans` needs Ray."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.results import publish, table

TRAINING_TOKENS = 15e12


def speed(folder: Path) -> None:
    """Tokens per second, and what a large corpus takes."""
    from benchmarks.corpus.scan_speed import ROUNDS, TOKENS, rows

    found, rates = [], {}
    for dtype in ("uint16", "uint32"):
        lines, rates[dtype] = rows(dtype)
        found += lines
    body = (
        f"{TOKENS:,} tokens with the frequencies of text, from a file in the page cache; medians "
        f"of {ROUNDS} rounds in turn, processor time of one core. The ratio is to the faster bare "
        "count.\n\n"
    )
    body += table(["ids", "scan", "million tokens/s", "ratio to bare", "bar"], found)
    hours = {dtype: TRAINING_TOKENS / rate / 3600 for dtype, rate in rates.items()}
    body += (
        "\n\nOn paper, from these rates: all statistics of 15e12 tokens take "
        f"{hours['uint32']:,.0f} core-hours as uint32 (60 TB). On 1,000 cores "
        f"that is {60 * hours['uint32'] / 1000:,.1f} minutes, during which 60 TB must arrive at "
        f"{60e3 / (3.6 * hours['uint32']):,.0f} GB/s; at 10 GB/s reading alone takes "
        f"{60e12 / 10e9 / 60:,.0f} minutes and is the limit."
    )
    headlines = [
        (f"speed of a scan that counts, {ids}, of a bare np.bincount", share, bar)
        for ids, scan, _, share, bar in found
        if scan == "counts"
    ]
    publish("Corpus: speed of a scan", "scripts/bench corpus speed", body, headlines)


def scans(folder: Path) -> None:
    """2e9 tokens in little memory, the same result everywhere, and what spreading costs."""
    from benchmarks.corpus.scan_places import compare
    from benchmarks.corpus.scan_speed import large_file
    from benchmarks.corpus.spread_cost import rows

    tokens, shards, seconds, cpu, before, after = large_file(folder)
    places = compare(folder)
    equal = sum(row[2] == "equal" for row in places)
    spreading = rows()
    body = (
        f"A raw file of 4 GB, uint16, {tokens:,} tokens in {shards} shards: {seconds:.0f} s, "
        f"{cpu:.0f} s of processor time, {before:.0f} MB after imports. The same scan elsewhere; "
        "equal: every figure of `trimtab corpus show --json`, places of examples included.\n\n"
        + table(["where", "seconds", "result", "bar"], places)
        + "\n\nSpreading and masking:\n\n"
        + table(["what", "measured", "bar"], spreading)
    )
    publish(
        "Corpus: scans",
        "scripts/bench corpus scans",
        body,
        [
            (f"memory to scan {tokens:,} tokens", f"{after:.0f} MB", "500 MB"),
            ("scans elsewhere with the same result", f"{equal} of {len(places) - 1}", "all"),
            *((what, found, bar) for what, found, bar in spreading if bar != "-"),
        ],
    )


PARTS = {"speed": speed, "scans": scans}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench corpus")
    parser.add_argument("part", choices=PARTS)
    with tempfile.TemporaryDirectory() as temporary:
        PARTS[parser.parse_args().part](Path(temporary))


if __name__ == "__main__":
    main()
