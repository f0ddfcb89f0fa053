"""`trimtab corpus merge`: add up the shards of a scan."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.json_output import AsJson, print_json


def merge(
    folder: Annotated[Path, typer.Argument(help="The folder of the scan.")],
    as_json: AsJson = False,
) -> None:
    """Add up the shards of a scan, each once; reports the ones that are missing.

    Exit code: 0 done, 2 usage error, 3 shards are missing or damaged.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab import corpus
    from trimtab.cli import output
    from trimtab.cli.corpus.show import print_summary, summary_to_dict

    with output.reported_errors():
        result = corpus.merge_folder(folder)
        summary = corpus.summarise(result)
        if as_json:
            print_json("corpus merge", summary_to_dict(summary, None))
        else:
            print_summary(summary, None)
