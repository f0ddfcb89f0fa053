"""Statistics of token files: what a corpus holds that can make a run spike.

options.py      what to look for; the thresholds and their sources
plan.py         files -> units of work -> shards
token_files.py  files of token ids
row_files.py    files with rows of text or token ids
counting.py     the counting, on numpy arrays
statistics.py   what is counted, duplicate documents in bounded memory; parts add up
scanning.py     scan and merge: in this process, or in several
results.py      results on disk, and what they mean: rare tokens, repeats, duplicates
spread.py       which rows hold rare tokens; an order of an epoch in which no batch has one twice
order.py        whether the data is well shuffled, and the rows of a step
batches.py      a batch sampler with that order, over ranks, resumable; masks for repeated phrases

    counts = trimtab.corpus.load_summary("stats")
    rare = find_rare_rows(dataset, counts.rare)
    batches = spread_rare(sampler, rare, batch_size=8)
    loader = StatefulDataLoader(dataset, batch_sampler=batches)
"""

from trimtab.corpus.batches import Shuffle, SpreadBatches, mask_repeats, spread_rare
from trimtab.corpus.options import ScanOptions
from trimtab.corpus.order import FileRows, OrderCheck, check_order, open_rows
from trimtab.corpus.plan import ScanPlan, plan_scan
from trimtab.corpus.results import ScanResult, Summary, load_result, load_summary
from trimtab.corpus.scanning import Runner, merge_folder, run_here, run_processes, scan, scan_one
from trimtab.corpus.spread import RareRows, find_rare_rows, find_rare_windows

__all__ = [
    "FileRows",
    "OrderCheck",
    "RareRows",
    "Runner",
    "ScanOptions",
    "ScanPlan",
    "ScanResult",
    "Shuffle",
    "SpreadBatches",
    "Summary",
    "check_order",
    "find_rare_rows",
    "find_rare_windows",
    "load_result",
    "load_summary",
    "mask_repeats",
    "merge_folder",
    "open_rows",
    "plan_scan",
    "run_here",
    "run_processes",
    "scan",
    "scan_one",
    "spread_rare",
]
