"""`trimtab schema`: the JSON Schema of what `--json` prints."""

import typer


def schema() -> None:
    """Print the JSON Schema of what every command prints with --json.

    Exit code: 0 printed.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    import json

    from trimtab.cli.schema.published import published_schema

    typer.echo(json.dumps(published_schema(), indent=1))
