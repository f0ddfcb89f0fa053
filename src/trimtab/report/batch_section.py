"""The batches of an incident in words: a line or two for the terminal, a section as Markdown."""

from collections.abc import Iterator, Sequence

from trimtab.explain.batches.batch_report import BatchReport, MixShift, RowReport
from trimtab.explain.batches.token_counts import BAND_NAMES, Band, TokenShare
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.check import number
from trimtab.explain.measures.repeats import RepeatedBatch
from trimtab.report.escaping import escape_markdown, printable
from trimtab.report.token_figure import text_histogram

FIGURE = "tokens.svg"
"""The file of the histogram, beside the post-mortem."""

HOW_TO_KEEP = "not recorded; it needs `guard.steps(loader)` with batches that are still on the host"

RARE_BANDS = BAND_NAMES[-2:]
_MIN_RARE_SHARE = 0.1
_MAX_TOKENS_NAMED = 3
_MAX_IDS_SHOWN = 24
_MAX_TEXT_SHOWN = 200


def batch_lines(diagnosis: Diagnosis) -> list[str]:
    """What stands out, the clearest first; nothing if nothing does."""
    lines = []
    repeated, batch = diagnosis.repeated_batch, diagnosis.batch
    if repeated is not None:
        lines.append(_repeated(repeated))
    if batch is not None and batch.shift is not None:
        lines.append(_shifted(batch.shift))
    if batch is not None and batch.num_unusual_rows:
        lines.append(_unusual_rows(batch))
    return lines


def unusual_tokens_text(batch: BatchReport | None) -> str | None:
    """The tokens that stand out, for one cell of a table; None if batches were not kept."""
    if batch is None or not batch.num_run_tokens:
        return None
    tokens = batch.shift.more if batch.shift else batch.tokens
    return _token_shares(tokens) or "none"


def batch_section(diagnosis: Diagnosis, ranks: int | None) -> Iterator[str]:
    """The batches around the onset, as Markdown."""
    batch = diagnosis.batch
    for line in batch_lines(diagnosis):
        yield f"- {escape_markdown(line[0].upper() + line[1:])}."
    if batch is None:
        yield f"- Token histogram of the offending batch: {HOW_TO_KEEP}"
        return
    whose = " of the first rank" if (ranks or 1) > 1 else ""
    yield (
        f"- Sequences and tokens{whose}: {batch.num_batches} batches around the onset were "
        f"compared with {batch.num_run_tokens:,} tokens of the run before it. Token ids are in "
        "batch.json."
    )
    if not batch.is_unusual:
        yield "- No sequence of these batches is unusual against those before."
    yield from _row_table(batch)
    yield from _token_table(batch)


def _row_table(batch: BatchReport) -> Iterator[str]:
    rows = [row for row in batch.rows if row.reasons] or list(batch.rows[:2])
    if not rows:
        return
    usual = batch.usual
    yield ""
    yield (
        f"Sequences of the batch at {_at(batch.data_position, batch.step)} "
        f"({batch.num_unusual_rows} of {batch.num_rows} unusual; usual values: rarity "
        f"{number(usual.get('rarity'))}, repetition {number(usual.get('repetition'))}, loss "
        f"{number(usual.get('loss'))}):"
    )
    yield ""
    yield "| position | row | why | rarity | repetition | loss | largest token loss | tokens |"
    yield "| ---: | ---: | --- | ---: | ---: | ---: | --- | --- |"
    for row in rows:
        position = row.data_position if row.data_position >= 0 else ""
        cells = (
            *(str(position), str(row.row), ", ".join(row.reasons)),
            *(number(value) if value is not None else "" for value in (row.rarity, row.repetition)),
            "" if row.loss is None else number(row.loss),
            _largest(row),
            _tokens_of(row),
        )
        yield f"| {' | '.join(map(escape_markdown, cells))} |"


def _largest(row: RowReport) -> str:
    if row.max_token_loss is None:
        return ""
    return f"{number(row.max_token_loss)} at token {row.max_loss_place}"


def _tokens_of(row: RowReport) -> str:
    if row.text is not None:
        text = printable(row.text)
        return text if len(text) <= _MAX_TEXT_SHOWN else f"{text[:_MAX_TEXT_SHOWN]}..."
    ids = " ".join(map(str, row.token_ids[:_MAX_IDS_SHOWN]))
    return ids if row.num_tokens <= _MAX_IDS_SHOWN else f"{ids} ..."


def _token_table(batch: BatchReport) -> Iterator[str]:
    tokens, bands = batch.histogram
    if tokens:
        yield ""
        yield (
            "Tokens with an unusual share. G2 is the log-likelihood ratio of Dunning 1993, over "
            "15.13 where p < 0.0001; a ratio of +1 is twice the share:"
        )
        yield ""
        yield "| token | count | share here | share in the run | log2 ratio | G2 |"
        yield "| --- | ---: | ---: | ---: | ---: | ---: |"
        for token in tokens:
            cells = (
                *(_name(token), str(token.count), share_text(token.share)),
                *(share_text(token.run_share), f"{token.log2_ratio:+.1f}", f"{token.g2:.0f}"),
            )
            yield f"| {' | '.join(map(escape_markdown, cells))} |"
    if bands:
        yield ""
        yield f"Token histogram ([figure]({FIGURE})):"
        yield ""
        yield "```"
        yield from text_histogram(batch)
        yield "```"


def _repeated(repeated: RepeatedBatch) -> str:
    others = f"; {repeated.num_others} other batches came again too" if repeated.num_others else ""
    first = _at(repeated.data_position, repeated.step)
    last = _at(repeated.last_data_position, repeated.last_step)
    times = "twice" if repeated.count == 2 else f"{repeated.count} times"
    return f"the batch at {first} was served {times}, last at {last}{others}"


def _shifted(shift: MixShift) -> str:
    where = f"from position {shift.data_position} on " if shift.data_position >= 0 else ""
    line = (
        f"{where}the tokens differ from those of the run before (divergence "
        f"{number(shift.divergence)} bits, usually {number(shift.usual)})"
    )
    for word, tokens in (("more", shift.more), ("fewer", shift.fewer)):
        if tokens:
            line += f"; {word}: {_token_shares(tokens)}"
    return line


def _unusual_rows(batch: BatchReport) -> str:
    rows = [row for row in batch.rows if row.reasons]
    reasons = " and ".join(dict.fromkeys(reason for row in rows for reason in row.reasons))
    which = _which_rows(batch, rows)
    line = f"{which} of the batch at {_at(batch.data_position, batch.step)}: {reasons}"
    rare = [band for band in batch.bands if band.name in RARE_BANDS]
    if sum(band.share for band in rare) > _MIN_RARE_SHARE:
        share, run_share = (sum(values) for values in zip(*map(_shares, rare), strict=True))
        line += f", {share_text(share)} of it rare or new tokens ({share_text(run_share)} usual)"
    if batch.tokens:
        line += f"; {_token_shares(batch.tokens)}"
    others = len(batch.unusual_positions) - 1
    if others > 0:
        line += f"; unusual rows in {others} other batch{'es' if others > 1 else ''} too"
    return line


def _which_rows(batch: BatchReport, rows: list[RowReport]) -> str:
    """The unusual rows by number, where that is short."""
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


def _shares(band: Band) -> tuple[float, float]:
    return band.share, band.run_share


def _token_shares(tokens: Sequence[TokenShare]) -> str:
    """The first of these tokens: "token 17 is 61 % (0.02 % in the run), token 4 ..."."""
    return ", ".join(
        f"token {_name(token)} is {share_text(token.share)} ({share_text(token.run_share)} in the "
        "run)"
        for token in tokens[:_MAX_TOKENS_NAMED]
    )


def _name(token: TokenShare) -> str:
    return str(token.id) if token.text is None else f"{token.id} {printable(token.text)!r}"


def _at(position: int, step: int) -> str:
    return f"position {position}" if position >= 0 else f"step {step}"


def share_text(share: float) -> str:
    """A share in per cent, with as many digits as it needs."""
    percent = 100 * share
    if percent == 0:
        return "0 %"
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
