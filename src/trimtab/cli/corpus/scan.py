"""`trimtab corpus scan`: count the tokens of a corpus, whole or one shard of it."""

from pathlib import Path
from typing import Annotated

import typer

from trimtab.cli.json_output import AsJson, print_json


def scan(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            help="Files or folders: .bin (nanoGPT, llm.c, Megatron-LM with .idx), .npy, .parquet, "
            ".arrow (HF datasets), .jsonl.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    shards: Annotated[
        int | None, typer.Option(help="Number of shards; the default follows the size.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option(help="Scan only this shard, from 0 on: a job of an array.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Scan on a Ray cluster: an address, auto, or local (starts one on this machine).",
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Token ids of a raw .bin file.")] = "uint16",
    separator: Annotated[
        int | None, typer.Option(help="The token that ends a document in a flat file.")
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Ids from here on are out of range.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, for columns of text.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="The column of text or token ids.")] = None,
    source_column: Annotated[
        str | None, typer.Option(help="The column with the source of each row.")
    ] = None,
    counts_only: Annotated[
        bool, typer.Option(help="Only count tokens: no repeats, no documents.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Scan a corpus and write its statistics; a scan that was killed goes on where it stopped.

    Exit code: 0 done, 2 usage error, 3 unreadable file.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab import corpus
    from trimtab.cli import output
    from trimtab.cli.corpus.show import print_summary, summary_to_dict
    from trimtab.cli.progress import progress_bar
    from trimtab.core.errors import ConfigError

    with output.reported_errors():
        if ray is not None and (processes != 1 or shard is not None):
            raise ConfigError("--ray, --processes and --shard exclude each other")
        if shard is not None and shards is None:
            raise ConfigError("--shard needs --shards: the number of jobs of the array")
        options = corpus.ScanOptions(
            dtype=dtype,
            separator=separator,
            vocab_size=vocab_size,
            tokenizer=tokenizer,
            column=column,
            source_column=source_column,
            counts_only=counts_only,
        )
        plan = corpus.plan_scan(paths, options, num_shards=shards)
        if shard is not None:
            done = corpus.scan_one(plan, shard, out)
            if as_json:
                facts = {"shard": shard, "shards": plan.num_shards, "scanned_now": done}
                print_json("corpus scan", facts)
                return
            state = "scanned" if done else "was scanned before"
            typer.echo(f"shard {shard} of {plan.num_shards} {state}", err=True)
            return
        runner: corpus.Runner = corpus.run_here
        if ray is not None:
            runner = corpus.run_ray(ray)
        elif processes > 1:
            runner = corpus.run_processes(processes)
        with progress_bar() as progress:
            result = corpus.scan(
                plan, out, runner=runner, on_shard=lambda n, total: progress("Scanning", n, total)
            )
        summary = corpus.summarise(result)
        if as_json:
            print_json("corpus scan", summary_to_dict(summary, None))
        else:
            print_summary(summary, None)
