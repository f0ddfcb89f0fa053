"""What spreading and masking cost, in processor time beside the batches they act on."""

import json
import statistics
import time
from collections.abc import Callable
from itertools import islice

import numpy as np

from trimtab.corpus import (
    RareRows,
    Shuffle,
    SpreadBatches,
    find_rare_windows,
    mask_repeats,
    spread_rare,
)

ROWS, BATCH, LENGTH = 1_000_000, 512, 2_048
RARE_TOKENS, TIMES = 5_000, 5
ROUNDS = 3


def rows() -> list[list[str]]:
    """The rows of a table."""
    random = np.random.default_rng(0)
    rare = RareRows.of(
        random.integers(0, ROWS, size=RARE_TOKENS * TIMES),
        np.repeat(np.arange(RARE_TOKENS), TIMES),
        ROWS,
    )

    def plain() -> None:
        order = list(Shuffle(ROWS))
        for start in range(0, ROWS, BATCH):
            order[start : start + BATCH]

    def spread_out() -> None:
        for _ in spread_rare(Shuffle(ROWS), rare, batch_size=BATCH):
            pass

    batches = ROWS // BATCH
    before, after = _seconds(plain), _seconds(spread_out)
    plan = spread_rare(Shuffle(ROWS), rare, batch_size=BATCH).plan
    tokens = random.integers(0, 50_000, size=(BATCH, LENGTH))
    mask = _seconds(lambda: mask_repeats(tokens, tokens))
    flat = random.integers(0, 50_000, size=2**24).astype(np.uint16)
    find = _seconds(lambda: find_rare_windows(flat, np.arange(100), LENGTH))
    per_batch = 1e6 * (after - before) / batches
    return [
        [
            f"spreading, for each batch of {BATCH} rows; {ROWS:,} rows, {len(rare.rows):,} "
            "occurrences of rare tokens",
            f"{per_batch:.0f} us more than shuffling ({1e6 * before / batches:.0f} us)",
            "-",
        ],
        [
            "rare tokens twice in a batch",
            f"{plan.repeated} of {plan.repeated_before}; {rare.unavoidable} within one row",
            f"{rare.unavoidable}",
        ],
        [
            "resumes at random places that continue with the same batches",
            _resumes(),
            "20 of 20",
        ],
        ["rows that change places", f"{plan.moved} of {ROWS:,}", "-"],
        [f"finding rare rows, {len(flat):,} tokens", f"{1e9 * find / len(flat):.1f} ns/token", "-"],
        [f"`mask_repeats`, {BATCH} x {LENGTH:,} tokens", f"{1e3 * mask:.0f} ms", "-"],
    ]


def _resumes(num_rows: int = 20_000) -> str:
    """Resume with new objects, from a state that went through JSON; compare all later batches."""
    rare = RareRows.of(np.arange(0, num_rows, 7), np.arange(0, num_rows, 7) % 400, num_rows)

    def make() -> SpreadBatches:
        return spread_rare(Shuffle(num_rows), rare, batch_size=16)

    whole = make()
    expected = list(whole)
    equal = 0
    for stop in np.random.default_rng(1).integers(0, len(expected), size=20).tolist():
        stopped = make()
        for _ in islice(stopped, stop):
            pass
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        equal += list(resumed) == expected[stop:]
    return f"{equal} of 20"


def _seconds(run: Callable[[], object]) -> float:
    """The median processor time of a few runs."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return statistics.median(found)
