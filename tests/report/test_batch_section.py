"""The batches of an incident in words and tables; what comes from data stays data."""

import dataclasses
from typing import Any

import pytest
from tests.report.test_reports import troubled_report

from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures import BatchRepeats
from trimtab.journal.batches.batch_report import BatchReport, RowReport
from trimtab.journal.batches.tokens import TokenShare
from trimtab.report.batch_section import (
    HOW_TO_KEEP,
    batch_items,
    batch_lines,
    share_text,
)
from trimtab.report.postmortem import write_postmortem

NASTY = "<script>alert(1)</script>|`\x1b[31m\n& \" '"


def token(id: int = 50256, text: str | None = None) -> TokenShare:
    return TokenShare(id=id, count=61, share=0.61, run_share=0.0002, g2=900.0, text=text)


def row(number: int, **changes: Any) -> RowReport:
    usual: dict[str, Any] = {
        "data_position": 812,
        "row": number,
        "reasons": ("rare tokens",),
        "rarity": 11.0,
        "repetition": 0.0,
        "loss": None,
        "max_token_loss": None,
        "max_loss_place": None,
        "num_tokens": 3,
        "token_ids": (50256, 50256, 7),
    }
    return RowReport(**(usual | changes))


def batch(**changes: Any) -> BatchReport:
    usual: dict[str, Any] = {
        "onset_tick": 600,
        "num_batches": 20,
        "num_run_tokens": 100_000,
        "tick": 600,
        "step": 600,
        "data_position": 812,
        "num_rows": 8,
        "num_unusual_rows": 2,
        "unusual_positions": (812,),
        "usual": {"rarity": 5.0, "repetition": 0.0},
        "rows": (row(3), row(5)),
        "tokens": (token(),),
    }
    return BatchReport(**(usual | changes))


def incident(found: BatchReport | None, repeated: BatchRepeats | None = None) -> Diagnosis:
    report = next(one for one in troubled_report().incidents if one.incident.onset.step == 600)
    return dataclasses.replace(report, repeated_batch=repeated, batch=found)


def test_the_offending_rows_and_tokens_in_one_line() -> None:
    assert batch_lines(incident(batch())) == [
        "rows 3 and 5 of the batch at position 812: rare tokens; token 50256 is 61 % (0.02 % in "
        "the run)"
    ]


@pytest.mark.parametrize(
    ("rows", "changes", "words"),
    [
        ([3], {}, "row 3 of the batch"),
        ([0, 1, 2], {}, "rows 0 to 2 of the batch"),
        ([0, 2, 5], {}, "rows 0, 2 and 5 of the batch"),
        (range(8), {}, "all 8 rows of the batch"),
        (range(8), {"num_unusual_rows": 20, "num_rows": 64}, "20 of 64 rows of the batch"),
    ],
)
def test_rows_are_named_as_short_as_possible(rows: Any, changes: Any, words: str) -> None:
    named = tuple(row(number) for number in rows)
    found = batch(**{"rows": named, "num_unusual_rows": len(named), **changes})
    assert batch_lines(incident(found))[0].startswith(words)


def test_a_repeated_batch_in_one_line() -> None:
    repeated = BatchRepeats(
        step=282, data_position=282, count=80, last_step=361, last_data_position=361, num_others=0
    )
    assert batch_lines(incident(None, repeated)) == [
        "the batch at position 282 was served 80 times, last at position 361"
    ]


def test_nothing_unusual_is_no_line_and_one_sentence_of_the_postmortem() -> None:
    usual = batch(num_unusual_rows=0, rows=(row(0, reasons=()),), tokens=())
    report = incident(usual)
    assert batch_lines(report) == []
    assert "No sequence of these batches is unusual against those before." in batch_items(report, 1)


def test_batches_that_were_not_kept_say_how_to_keep_them() -> None:
    assert HOW_TO_KEEP in write_postmortem(incident(None), troubled_report())


def test_on_several_ranks_it_says_whose_sequences_they_are() -> None:
    assert "of the first rank" in str(list(batch_items(incident(batch()), 8)))
    assert "of the first rank" not in str(list(batch_items(incident(batch()), 1)))


def test_the_postmortem_names_the_tokens_in_its_table_of_symptoms() -> None:
    text = write_postmortem(incident(batch()), troubled_report())
    name = "unusual tokens in the batch"
    assert f"| {name} | token 50256 is 61 % (0.02 % in the run), of " in text


def test_text_of_the_data_is_never_read_as_markup() -> None:
    found = batch(rows=(row(3, text=NASTY), row(5)), tokens=(token(text=NASTY),))
    text = write_postmortem(incident(found), troubled_report())
    assert "<script" not in text.replace("'<script>", "")
    assert "\x1b" not in text


def test_shares_have_the_digits_they_need() -> None:
    assert [share_text(share) for share in (0.0, 0.61, 0.0002, 0.05)] == [
        "0 %",
        "61 %",
        "0.02 %",
        "5 %",
    ]
