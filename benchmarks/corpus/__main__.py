"""`scripts/bench corpus`: about half an hour on a quiet machine; `places` needs Ray."""

import argparse
import dataclasses
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpus.lab_orders import (
    BELOW,
    BURST,
    CALM_LR,
    SPIKING_LR,
    STEPS,
    Order,
    run_order,
)
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table

SEEDS = range(220, 240)
"""No setting was chosen on them; seeds 200 to 219 were looked at before spikes were separated by
their batch."""

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
    publish("Corpus: speed of a scan", "scripts/bench corpus speed", body)


def memory(folder: Path) -> None:
    """2e9 tokens."""
    from benchmarks.corpus.scan_speed import large_file

    tokens, shards, seconds, cpu, before, after = large_file(folder)
    rows: list[list[object]] = [
        ["tokens counted", f"{tokens:,}", "2,000,000,000"],
        ["shards", shards, "-"],
        ["seconds, all statistics, one process", f"{seconds:.0f}", "about 60"],
        ["processor seconds", f"{cpu:.0f}", "-"],
        ["memory after imports", f"{before:.0f} MB", "-"],
        ["memory at most", f"{after:.0f} MB", "500 MB"],
    ]
    body = "A raw file of 4 GB, uint16.\n\n" + table(["what", "measured", "bar"], rows)
    publish("Corpus: memory of a scan", "scripts/bench corpus memory", body)


def places(folder: Path) -> None:
    """The same result everywhere."""
    from benchmarks.corpus.scan_places import compare

    header = ["where", "seconds", "result", "bar"]
    publish(
        "Corpus: one result everywhere",
        "scripts/bench corpus places",
        "Equal: every figure of `trimtab corpus show --json`, places of examples included.\n\n"
        + table(header, compare(folder)),
    )


def orders(folder: Path, seeds: range = SEEDS) -> None:
    """Spikes and held-out loss of the same rows in several orders."""
    cache = ResultCache(folder)

    def run_seeds(order: Order, lr: float) -> list[dict[str, Any]]:
        return [
            cache.get(
                f"{order.name} seed {seed} lr {lr}",
                lambda seed=seed: dataclasses.asdict(run_order(seed, order, lr=lr)),  # type: ignore[misc]
            )
            for seed in seeds
        ]

    found = {order: run_seeds(order, SPIKING_LR) for order in Order}
    calm, calm_spread = (
        run_seeds(order, CALM_LR) for order in (Order.SHUFFLED, Order.SHUFFLED_SPREAD)
    )
    if seeds != SEEDS:
        return
    rows = []
    for order, runs in found.items():
        loss = paired_gap(runs, found[Order.SHUFFLED])
        rows.append(
            [
                order.value,
                f"{sum(run['spikes'] > 0 for run in runs)} of {len(runs)}",
                f"{sum(run['rare_spikes'] > 0 for run in runs)} of {len(runs)}",
                f"{statistics.median(run['peak'] for run in runs):.2f}",
                f"{statistics.median(run['peak_norm'] for run in runs):.1f}",
                f"{statistics.median(run['most'] for run in runs):.0f}",
                f"{statistics.median(run['repeated'] for run in runs):.0f}",
                "-" if order is Order.SHUFFLED else loss,
            ]
        )
    header = ["order", "runs with a spike", "at a batch with rare tokens"]
    header += ["peak of the loss", "peak of the norm"]
    header += ["rare tokens in a batch, at most", "rare tokens twice in a batch"]
    header += ["held-out loss, minus shuffled"]
    body = (
        f"The same rows in every order, {STEPS} steps of 0.15M parameters, seeds {SEEDS[0]} to "
        f"{SEEDS[-1]}, used for nothing else. The lab's text with rows of which a quarter "
        f"({BURST} tokens) is made of tokens that occur fewer than {BELOW} times in all. Stored: "
        "these rows are one shard and come together. Spikes are incidents with an alarm, by "
        "trimtab's rules; peaks are over the 50 steps before (loss, in nats) and over the median "
        "(norm); medians over seeds. Repeats that are left with `spread_rare` are within one row. "
        "Paired differences with 95 % intervals. Bars: no spike at a batch with rare tokens with "
        "`spread_rare`, and an interval of the loss that does not lie above 0.\n\n"
    )
    deviation = statistics.stdev(run["eval_loss"] for run in calm)
    spikes = sum(run["spikes"] > 0 for run in (*calm, *calm_spread))
    tail = (
        f"\n\nAt a peak rate of {CALM_LR:g} instead of {SPIKING_LR:g}, where {spikes} of "
        f"{2 * len(calm)} runs spike, the held-out loss of `shuffled, spread_rare` minus that of "
        f"`shuffled` is {paired_gap(calm_spread, calm)}; over the seeds, `shuffled` has a "
        f"deviation of {deviation:.4f}."
    )
    publish(
        "Corpus: rare tokens in the lab",
        "scripts/bench corpus orders",
        body + table(header, rows) + tail,
    )


def paired_gap(runs: list[dict[str, Any]], plain: list[dict[str, Any]]) -> str:
    """Held-out loss minus that of the same seeds in plain order: mean and 95 % interval."""
    pairs = zip(runs, plain, strict=True)
    gaps = np.array([run["eval_loss"] - other["eval_loss"] for run, other in pairs])
    half = 2.093 * gaps.std(ddof=1) / np.sqrt(len(gaps))  # Student's t, 19 degrees of freedom
    return f"{gaps.mean():+.4f} [{gaps.mean() - half:+.4f}, {gaps.mean() + half:+.4f}]"


def cost(folder: Path) -> None:
    """What spreading and masking cost."""
    from benchmarks.corpus.spread_cost import rows

    header = ["what", "measured", "bar"]
    publish("Corpus: cost of spreading", "scripts/bench corpus cost", table(header, rows()))


PARTS = {"speed": speed, "memory": memory, "places": places, "cost": cost, "orders": orders}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench corpus")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--cache", type=Path, help="keep and reuse the runs of `orders` here")
    parser.add_argument("--seeds", help="first:last, to fill the cache in several processes")
    arguments = parser.parse_args()
    for name in arguments.part or PARTS:
        with tempfile.TemporaryDirectory() as temporary:
            part = PARTS[name]
            folder = Path(temporary)
            if name == "orders":
                folder = arguments.cache or folder
                if arguments.seeds:
                    first, last = map(int, arguments.seeds.split(":"))
                    part = partial(orders, seeds=range(first, last))
            part(folder)


if __name__ == "__main__":
    main()
