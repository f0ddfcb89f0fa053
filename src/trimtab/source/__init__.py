"""Source: what the user has in hand, as a run.

`deciding`  `find_source`: which kind of thing it is, text and file objects too; `read_run`
`tables`    rows and columns in memory, and runs of trackers, under the names that a log would have
`cells`     one column of any package as numbers

Packages of the user (pandas, polars, pyarrow, torch, wandb) are recognised by what their objects
are; only pyarrow and mlflow are imported, where an object of theirs needs it.
"""

from trimtab.source.deciding import Progress, ReadOptions, Source, find_source, read_run

__all__ = ["Progress", "ReadOptions", "Source", "find_source", "read_run"]
