"""Batches that cannot spike by what is in them.

rare_rows.py       which rows of a dataset hold rare tokens
spread.py          the order of an epoch, changed so that no batch has a rare token twice
spread_batches.py  spread_rare: a batch sampler with that order, over ranks, resumable
repeats.py         mask_repeats: no loss on phrases that are repeated over and over

    counts = trimtab.corpus.load_summary("stats")
    rare = find_rare_rows(dataset, counts.rare)
    batches = spread_rare(sampler, rare, batch_size=8)
    loader = StatefulDataLoader(dataset, batch_sampler=batches)
"""

from trimtab.data.rare_rows import RareRows, find_rare_rows, find_rare_windows
from trimtab.data.repeats import mask_repeats
from trimtab.data.spread_batches import Shuffle, SpreadBatches, spread_rare

__all__ = [
    "RareRows",
    "Shuffle",
    "SpreadBatches",
    "find_rare_rows",
    "find_rare_windows",
    "mask_repeats",
    "spread_rare",
]
