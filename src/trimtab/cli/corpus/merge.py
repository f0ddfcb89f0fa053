"""`trimtab corpus merge`: add up the shards of a scan."""

from pathlib import Path
from typing import Annotated

import typer


def merge(
    folder: Annotated[Path, typer.Argument(help="The folder of the scan.")],
) -> None:
    """Add up the shards of a scan, each once; reports the ones that are missing.

    Exit code: 0 done, 3 shards are missing or damaged.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab import corpus
    from trimtab.cli import output
    from trimtab.cli.corpus.show import print_summary

    with output.reported_errors():
        result = corpus.merge_folder(folder)
        print_summary(corpus.summarise(result), None)
