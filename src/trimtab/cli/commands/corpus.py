"""`trimtab corpus`: scan token files, add up the shards of a scan, show what it found."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.help import App
from trimtab.cli.options import AsJson, ExitCode, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.corpus import FileRows, OrderCheck, Summary
    from trimtab.corpus.counting import Counts


NAMED, SHOWN = 5, 3
"""Tokens and places of each kind that are printed; `--json` has all that are kept."""


def show(
    path: Annotated[Path, typer.Argument(help="The folder or result file of a scan.")],
    below: Annotated[int, typer.Option(help="A token with fewer occurrences is rare.")] = 10,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json, to show tokens as text.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a scan found: rare tokens, repeats, duplicates, damage, and where.

    Example: trimtab corpus show stats

    Exit code: 0 nothing found, 1 findings (rare tokens alone are none), 2 usage error,
    3 unreadable result.
    """
    from trimtab import corpus

    summary = corpus.load_summary(path, below)
    vocabulary = _vocabulary(tokenizer)
    if as_json:
        print_json("corpus show", summary_to_dict(summary, vocabulary))
    else:
        print_summary(summary, vocabulary)
    raise typer.Exit(ExitCode.FINDINGS if summary.has_findings else ExitCode.CLEAN)


def print_summary(summary: "Summary", vocabulary: dict[str, int] | None) -> None:
    """Print what a scan found, for people."""
    from rich.console import Console
    from rich.text import Text

    from trimtab.core.text import printable

    console = Console(highlight=False, soft_wrap=True)
    facts = summary_to_dict(summary, vocabulary)
    console.print(
        f"{facts['tokens']:,} tokens in {facts['files']:,} files, {facts['documents']:,} documents"
    )
    console.print(_sources(facts))
    for line in _findings(facts, vocabulary):
        console.print(Text(printable(line)))


def _sources(facts: dict[str, Any]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    from trimtab.core.text import printable

    names = ("tokens", "share", "documents", "distinct", "rare", "repeated")
    table = Table("source", *names, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, source in facts["sources"].items():
        share = source["tokens"] / max(facts["tokens"], 1)
        table.add_row(
            Text(printable(name)),
            f"{source['tokens']:,}",
            f"{100 * share:.1f} %",
            f"{source['documents']:,}",
            f"{source['distinct']:,}",
            f"{source['rare_occurrences']:,}",
            f"{source['repeated_tokens']:,}",
        )
    return table


def _findings(facts: dict[str, Any], vocabulary: dict[str, int] | None) -> list[str]:
    """Return a line for each kind of finding, and one for each of its first places."""
    texts = {} if vocabulary is None else {id: token for token, id in vocabulary.items()}

    def named(ids: list[int]) -> str:
        shown = [f"{id} {texts[id]!r}" if id in texts else str(id) for id in ids[:NAMED]]
        return ", ".join(shown) + (", ..." if len(ids) > NAMED else "")

    def places(found: list[dict[str, Any]], what: str) -> list[str]:
        return [f"           {one['place']}  {what.format(**one)}" for one in found[:SHOWN]]

    rare, again = facts["rare"], facts["duplicates"]
    lines = [
        f"rare       {len(rare['ids']):,} tokens occur 1 to {rare['below'] - 1} times, "
        f"{rare['occurrences']:,} times together: {named(rare['ids'])}",
        f"never      {len(facts['never']):,} tokens never occur: {named(facts['never'])}",
    ]
    if facts["out_of_range"]:
        lines.append(f"invalid    {facts['out_of_range']:,} ids are out of range")
    if facts["repeated_runs"]:
        count, tokens = facts["repeated_runs"], facts["repeated_tokens"]
        lines.append(f"repeats    {count:,} phrases follow themselves 32 times, {tokens:,} tokens")
        lines += places(facts["repeats"], "a phrase of {period} tokens")
    if again["documents"]:
        about = "about " if again["kept_share"] < 1 else ""
        count, tokens = again["documents"], again["tokens"]
        lines.append(f"duplicate  {about}{count:,} documents occurred before, {tokens:,} tokens")
        lines += places(again["most_repeated"], "{count:,} times, {length:,} tokens")
    if facts["long_documents"]:
        count, limit = facts["long_documents"], facts["long_from"]
        lines.append(f"long       {count:,} documents have {limit:,} tokens or more")
        lines += places(facts["longest"], "{tokens:,} tokens")
    if facts["damaged_documents"]:
        lines.append(f"damaged    {facts['damaged_documents']:,} documents")
        lines += places(facts["damaged"], "{what}")
    for kind, found in facts.get("damaged_tokens", {}).items():
        count, ids = found["occurrences"], found["ids"]
        lines.append(f"damaged    {count:,} tokens with {kind}: {named(ids)}")
    if facts["unreadable_rows"]:
        lines.append(f"unreadable {facts['unreadable_rows']:,} rows were skipped")
    if facts["counts_only"]:
        lines.append("           only tokens were counted: no repeats, no documents")
    elif not facts["documents"]:
        lines.append("           documents are not known: give their --separator to scan")
    return lines


def summary_to_dict(summary: "Summary", vocabulary: dict[str, int] | None) -> dict[str, Any]:
    """Return what a scan found as JSON values; with the damaged tokens of a vocabulary."""
    facts = summary.to_dict() | {"counts_only": summary.result.counts_only}
    if vocabulary is not None:
        from trimtab.corpus.row_files import damaged_tokens

        counts = summary.counts
        facts["damaged_tokens"] = {
            kind: {"ids": seen, "occurrences": int(counts[seen].sum())}
            for kind, ids in damaged_tokens(vocabulary).items()
            if (seen := [id for id in ids if id < len(counts) and counts[id]])
        }
    return facts


def _vocabulary(tokenizer: Path | None) -> dict[str, int] | None:
    if tokenizer is None:
        return None
    from trimtab.corpus.row_files import load_tokenizer

    vocabulary: dict[str, int] = load_tokenizer(tokenizer).get_vocab()
    return vocabulary


def scan(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="Files or folders: .bin (nanoGPT, llm.c, Megatron-LM with .idx), .npy, .parquet, "
            ".arrow (HF datasets), .jsonl.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Scan only shard I of N, from 0 on: a job of an array."),
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes on this machine.")] = 1,
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
        bool, typer.Option("--counts-only", help="Only count tokens: no repeats, no documents.")
    ] = False,
) -> None:
    """Scan a corpus and write its statistics; a scan that was killed continues where it stopped.

    `trimtab corpus show --json` prints them for programs.

    Example: trimtab corpus scan data/ --out stats

    Exit code: 0 done, 2 usage error, 3 unreadable file.
    """
    from trimtab import corpus
    from trimtab.cli.progress import progress_bar
    from trimtab.core.errors import ConfigError

    if processes != 1 and shard is not None:
        raise ConfigError("--processes and --shard exclude each other")
    index, num_shards = _parse_shard(shard)
    options = corpus.ScanOptions(
        dtype=dtype,
        separator=separator,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        column=column,
        source_column=source_column,
        counts_only=counts_only,
    )
    plan = corpus.plan_scan(paths, options, num_shards=num_shards)
    if index is not None:
        state = "scanned" if corpus.scan_one(plan, index, out) else "was scanned before"
        typer.echo(f"shard {index} of {num_shards} {state}", err=True)
        return
    runner: corpus.Runner = corpus.run_processes(processes) if processes > 1 else corpus.run_here
    with progress_bar() as progress:
        result = corpus.scan(
            plan, out, runner=runner, on_shard=lambda n, total: progress("Scanning", n, total)
        )
    print_summary(corpus.Summary(result=result), None)


def _parse_shard(text: str | None) -> tuple[int | None, int | None]:
    """Return index and number of shards of `--shard I/N`; None and None without it."""
    from trimtab.core.errors import ConfigError

    if text is None:
        return None, None
    index, _, number = text.partition("/")
    if not index.isdecimal() or not number.isdecimal():
        raise ConfigError(f"--shard takes I/N, got {text!r}; for example --shard 0/64")
    return int(index), int(number)


def merge(folder: Annotated[Path, typer.Argument(help="The folder of the scan.")]) -> None:
    """Add up the shards of a scan, each once; reports the ones that are missing.

    Example: trimtab corpus merge stats

    Exit code: 0 done, 2 usage error, 3 shards are missing or damaged.
    """
    from trimtab import corpus

    print_summary(corpus.Summary(result=corpus.merge_folder(folder)), None)


def order(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Files or folders of token ids: .bin, .npy."),
    ],
    rows: Annotated[
        int, typer.Option(help="Rows of a step, over all ranks and micro-batches.", min=1)
    ],
    length: Annotated[int, typer.Option(help="Tokens of a row of a flat file.", min=1)] = 1024,
    by: Annotated[
        Path | None,
        typer.Option(metavar="NPY", help="Row numbers in the order of the run; else as stored."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(help="Show the rows of this step, from 0 on, and what is unusual.", min=0),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Show where the unusual rows of this run's incidents are in the files: by "
            "record(row_ids=...), else by data position, with --rows rows each.",
        ),
    ] = None,
    stats: Annotated[
        Path | None, typer.Option(help="The folder of a scan: how frequent tokens are, for --step.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Token ids of a raw .bin file.")] = "uint16",
) -> None:
    """Find data that is badly shuffled, or the rows of the step at which a run spiked.

    Example: trimtab corpus order train.bin --rows 512 --by order.npy --step 312

    Exit code: 0 well shuffled, 1 it is not (or the step has unusual rows), 2 usage error,
    3 unreadable file.
    """
    from trimtab import corpus

    options = corpus.ScanOptions(dtype=dtype)
    found = corpus.open_rows(paths, options, length, by)
    if run is not None:
        lines, is_clean = _run_lines(found, corpus.open_rows(paths, options, length), rows, run)
    elif step is None:
        lines, is_clean = _order_lines(corpus.check_order(found, rows))
    else:
        counts = None if stats is None else corpus.load_summary(stats).counts
        lines, is_clean = _step_lines(found, rows, step, counts)
    for line in lines:
        typer.echo(line)
    raise typer.Exit(ExitCode.CLEAN if is_clean else ExitCode.FINDINGS)


def _order_lines(found: "OrderCheck") -> tuple[list[str], bool]:
    nearest = found.likeness[0]
    lines = [
        f"{found.num_batches:,} batches; neighbours have {nearest.cosine:+.3f} more in common than "
        f"random pairs ({nearest.errors:+.1f} standard errors)"
    ]
    if found.stretch:
        lines.append(
            f"badly shuffled: batches are alike over {found.stretch:,} batches or more; shuffle "
            "rows over all files, not within a buffer"
        )
    lines += [f"pocket: steps {a:,} to {b:,} are unlike all others" for a, b in found.pockets]
    if found.is_shuffled:
        lines.append("well shuffled")
    return lines, found.is_shuffled


def _step_lines(
    rows: "FileRows", step_rows: int, step: int, counts: "Counts | None"
) -> tuple[list[str], bool]:
    """Return the rows of a step: those that are unusual, or all if none is."""
    from trimtab.core.text import counted, digits
    from trimtab.corpus.order import examine_step

    report = examine_step(rows, step_rows, step, counts)
    usual = digits(report.usual.get("rarity"))
    lines = [
        f"step {step:,}: {report.num_unusual_rows} of {counted(report.num_rows, 'row')} unusual; "
        f"usual rarity {usual}"
    ]
    shown = [row for row in report.rows if row.reasons] or report.rows
    for row in shown:
        place = rows.place(step * step_rows + row.data_position)
        ids = " ".join(map(str, row.token_ids[:8]))
        why = f"  {', '.join(row.reasons)}" if row.reasons else ""
        lines.append(f"  {place}  rarity {digits(row.rarity)}{why}: {ids} ...")
    return lines, not report.num_unusual_rows


def _run_lines(
    by_order: "FileRows", by_id: "FileRows", rows: int, run: Path
) -> tuple[list[str], bool]:
    """Return where the unusual rows of a run's incidents are, and whether they are there."""
    from trimtab.cli.output import find_run
    from trimtab.report.incident_files import read_batches

    reports, lines = read_batches(find_run(run))
    for report in reports:
        for row in (row for row in report.rows if row.reasons):
            at, source = row.row_id, by_id
            if at is None:
                at, source = row.data_position * rows + row.row, by_order
            if not 0 <= at < len(source):
                lines.append(f"step {report.step:,} row {row.row}: not in these files")
                continue
            ids = source[at][: len(row.token_ids)].tolist()
            same = ids == list(row.token_ids)[: len(ids)]
            note = "" if same else "; other tokens are there: the run had another order or length"
            why = ", ".join(row.reasons)
            lines.append(f"step {report.step:,} row {row.row}: {source.place(at)}  {why}{note}")
    lines = list(dict.fromkeys(lines))  # a run and its post-mortem have the same batch
    return lines or ["no unusual rows in the incidents of this run"], not lines


corpus_app = App(
    name="corpus",
    help="Scan token files for what makes runs spike: rare tokens, repeats, duplicates, damage.",
    no_args_is_help=True,
    epilog="Example: trimtab corpus scan data/ --out stats",
)
corpus_app.command()(scan)
corpus_app.command()(merge)
corpus_app.command()(show)
corpus_app.command()(order)
