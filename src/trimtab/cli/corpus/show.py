"""`trimtab corpus show`: what a scan found."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.exit_codes import ExitCode
from trimtab.cli.json_output import AsJson, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from trimtab.corpus import Summary

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

    Exit code: 0 nothing found, 1 findings (rare tokens alone are none), 2 usage error,
    3 unreadable result.
    """
    # Imported here so that `trimtab --help` does not wait for numpy.
    from trimtab import corpus
    from trimtab.cli import output

    with output.reported_errors():
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

    from trimtab.report.escaping import printable

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

    from trimtab.report.escaping import printable

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
    """One line for each kind of finding, and one for each of its first places."""
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
    """What a scan found, as JSON values; with the damaged tokens of a vocabulary."""
    facts = summary.to_dict() | {"counts_only": summary.result.counts_only}
    if vocabulary is not None:
        from trimtab.corpus.text_damage import damaged_tokens

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
