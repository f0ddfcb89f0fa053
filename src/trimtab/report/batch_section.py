"""The batches of an incident: a line or two for the terminal, tables for pages."""

from collections.abc import Iterator, Sequence

from trimtab.core.text import counted, digits, printable
from trimtab.explain.causes.plausible import DATA_CAUSES
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures import BatchRepeats
from trimtab.journal.batches.batch_report import BatchReport, RowReport
from trimtab.journal.batches.tokens import TokenShare
from trimtab.report.document import Content, Paragraph, ReportTable, RichText, prose

HOW_TO_KEEP = (
    "not recorded; `guard.record(loss=loss, batch=batch)` records it if the batch is on the host. "
    "From the data: `trimtab corpus order FILES --rows N --step STEP`"
)

_IN_DATA = "in the data"
_MAX_TOKENS_NAMED = 3
_MAX_IDS_SHOWN = 24
_MAX_TEXT_SHOWN = 200


def batch_lines(diagnosis: Diagnosis) -> list[str]:
    """Return what stands out, the clearest first; nothing if nothing does."""
    lines = []
    repeated, batch = diagnosis.repeated_batch, diagnosis.batch
    if repeated is not None:
        lines.append(_repeated(repeated))
    if batch is not None and batch.num_unusual_rows and may_explain(batch, diagnosis):
        lines.append(_unusual_rows(batch))
    return lines


def may_explain(batch: BatchReport, diagnosis: Diagnosis) -> bool:
    """Return whether the batch may have to do with the incident; others are unusual, too."""
    return batch.tick == batch.onset_tick or diagnosis.cause in (None, *DATA_CAUSES)


def unusual_tokens_text(batch: BatchReport | None) -> str | None:
    """Return the tokens that stand out, for one cell of a table; None if batches were not kept."""
    if batch is None or not batch.num_run_tokens:
        return None
    if not batch.tokens:
        return "none"
    if batch.num_unusual_rows and batch.tick != batch.onset_tick:
        return "none in this batch"
    rows = counted(batch.num_unusual_rows, "unusual row")
    return f"{_token_shares(batch.tokens)}{f', of {rows}' * bool(batch.num_unusual_rows)}"


def batch_items(diagnosis: Diagnosis, ranks: int | None) -> Iterator[RichText]:
    """Yield what is known about the batches around the onset, one item of a list each."""
    batch = diagnosis.batch
    for line in batch_lines(diagnosis):
        yield f"{line[0].upper()}{line[1:]}."
    if batch is None:
        yield prose(f"Tokens of the offending batch: {HOW_TO_KEEP}")
        return
    whose = " of the first rank" if (ranks or 1) > 1 else ""
    yield (
        f"Sequences and tokens{whose}: {batch.num_batches} batches around the onset were "
        f"compared with {batch.num_run_tokens:,} tokens of the run before it. Token ids are in "
        "batch.json."
    )
    if not may_explain(batch, diagnosis):
        yield "The batch at the onset has no unusual sequence."
    elif not batch.num_unusual_rows:
        yield "No sequence of these batches is unusual against those before."


def batch_contents(batch: BatchReport) -> Iterator[Content]:
    """Yield the sequences of a batch as a table, and its tokens as another."""
    yield from _row_table(batch)
    if batch.tokens:
        yield Paragraph(
            "Tokens with an unusual share. G2 is the log-likelihood ratio of Dunning 1993, over "
            "15.13 where p is under 0.0001:"
        )
        yield _token_table(batch.tokens)


def _row_table(batch: BatchReport) -> Iterator[Content]:
    rows = [row for row in batch.rows if row.reasons] or list(batch.rows[:2])
    if not rows:
        return
    usual = batch.usual
    yield Paragraph(
        f"Sequences of the batch at {batch_place(batch)} "
        f"({batch.num_unusual_rows} of {batch.num_rows} unusual; usual values: rarity "
        f"{digits(usual.get('rarity'))}, repetition {digits(usual.get('repetition'))}, loss "
        f"{digits(usual.get('loss'))}):"
    )
    head = (
        "position",
        "row",
        "why",
        "rarity",
        "repetition",
        "loss",
        "largest token loss",
        "tokens",
    )
    cells = (
        (
            str(row.data_position) if row.data_position >= 0 else "",
            str(row.row) if row.row_id is None else f"{row.row} ({_IN_DATA} {row.row_id})",
            ", ".join(row.reasons),
            *("" if v is None else digits(v) for v in (row.rarity, row.repetition, row.loss)),
            _largest(row),
            _tokens_of(row),
        )
        for row in rows
    )
    yield ReportTable(head, tuple(cells), frozenset({0, 1, 3, 4, 5}))


def _largest(row: RowReport) -> str:
    if row.max_token_loss is None:
        return ""
    return f"{digits(row.max_token_loss)} at token {row.max_loss_place}"


def _tokens_of(row: RowReport) -> str:
    if row.text is not None:
        text = printable(row.text)
        return text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}..."
    ids = " ".join(map(str, row.token_ids[:_MAX_IDS_SHOWN]))
    return ids if row.num_tokens <= _MAX_IDS_SHOWN else f"{ids} ..."


def _token_table(tokens: Sequence[TokenShare]) -> ReportTable:
    rows = (
        (
            *(_name(token), str(token.count), share_text(token.share)),
            *(share_text(token.run_share), f"{token.g2:.0f}"),
        )
        for token in tokens
    )
    head = ("token", "count", "share here", "share in the run", "G2")
    return ReportTable(head, tuple(rows), frozenset(range(1, 5)))


def _repeated(repeated: BatchRepeats) -> str:
    others = f"; {repeated.num_others} other batches came again too" if repeated.num_others else ""
    first = batch_place(repeated)
    last = _place(repeated.last_data_position, repeated.last_step)
    times = "twice" if repeated.count == 2 else f"{repeated.count} times"
    return f"the batch at {first} was served {times}, last at {last}{others}"


def _unusual_rows(batch: BatchReport) -> str:
    rows = [row for row in batch.rows if row.reasons]
    reasons = " and ".join(dict.fromkeys(reason for row in rows for reason in row.reasons))
    which = _which_rows(batch, rows)
    ids = sorted(row.row_id for row in rows if row.row_id is not None)
    named = f" ({_IN_DATA} {', '.join(map(str, ids))})" if ids else ""
    line = f"{which}{named} of the batch at {batch_place(batch)}: {reasons}"
    if batch.tokens:
        line += f"; {_token_shares(batch.tokens)}"
    others = len(batch.unusual_positions) - 1
    if others > 0:
        line += f"; unusual rows in {others} other batch{'es' if others > 1 else ''} too"
    return line


def _which_rows(batch: BatchReport, rows: list[RowReport]) -> str:
    """Return the unusual rows by number where that is short."""
    count, places = batch.num_unusual_rows, sorted(row.row for row in rows)
    if count == batch.num_rows > 1:
        return f"all {count} rows"
    if len({row.data_position for row in rows}) > 1 or count > len(rows):
        return f"{count} of {batch.num_rows} rows"
    if count == 1:
        return f"row {places[0]}"
    if count > 2 and places[-1] - places[0] == count - 1:
        return f"rows {places[0]} to {places[-1]}"
    return f"rows {', '.join(map(str, places[:-1]))} and {places[-1]}"


def _token_shares(tokens: Sequence[TokenShare]) -> str:
    """Return the first of these tokens: "token 17 is 61 % (0.02 % in the run), token 4 ..."."""
    return ", ".join(
        f"token {_name(token)} is {share_text(token.share)} ({share_text(token.run_share)} in the "
        "run)"
        for token in tokens[:_MAX_TOKENS_NAMED]
    )


def _name(token: TokenShare) -> str:
    return str(token.id) if token.text is None else f"{token.id} {printable(token.text)!r}"


def batch_place(batch: BatchReport | BatchRepeats) -> str:
    """Return where a batch was served: its data position, or its step if that is not known."""
    return _place(batch.data_position, batch.step)


def _place(position: int, step: int) -> str:
    return f"position {position}" if position >= 0 else f"step {step}"


def share_text(share: float) -> str:
    """Return a share in per cent, with as many digits as it needs."""
    percent = 100 * share
    if percent == 0:
        return "0 %"
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
