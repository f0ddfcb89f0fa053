"""Statistics of token files: what a corpus holds that can make a run spike.

options.py          what is looked for; the thresholds and their sources
files/              one file per format
kernel/             the counting, on numpy arrays
text_damage.py      text that was decoded wrongly
plan.py             files -> units of work -> shards
scan_units.py       one shard -> Statistics
statistics.py       what is counted; parts add up
document_table.py   duplicate documents in bounded memory
runners.py          this process, several processes, Ray
storing.py          results on disk
scan.py             scan and merge
summary.py          what a result means: rare tokens, repeats, duplicates
"""

from trimtab.corpus.options import ScanOptions
from trimtab.corpus.plan import ScanPlan, plan_scan
from trimtab.corpus.runners import Runner, run_here, run_processes, run_ray
from trimtab.corpus.scan import merge_folder, scan, scan_one
from trimtab.corpus.storing import ScanResult, load_result
from trimtab.corpus.summary import Summary, load_summary, summarise

__all__ = [
    "Runner",
    "ScanOptions",
    "ScanPlan",
    "ScanResult",
    "Summary",
    "load_result",
    "load_summary",
    "merge_folder",
    "plan_scan",
    "run_here",
    "run_processes",
    "run_ray",
    "scan",
    "scan_one",
    "summarise",
]
