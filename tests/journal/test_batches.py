"""Sequences and tokens around an incident: what is unusual is named, what is usual is not."""

import functools
import json
import math

import numpy as np
import pytest

from trimtab.core.jsonable import to_jsonable
from trimtab.journal.batches.batch_report import (
    MAX_ROWS,
    MAX_TOKEN_IDS,
    BatchReport,
    KeptBatches,
    examine,
)
from trimtab.journal.batches.rows import KeptBatch, TokenRows, repetition
from trimtab.journal.batches.tokens import g2, unusual_tokens

VOCABULARY, ROWS, LENGTH = 400, 6, 64
ONSET = 150


def text(random: np.random.Generator, *, low: int = 0, high: int = 300) -> TokenRows:
    """Sequences whose token frequencies fall like those of language."""
    weights = 1.0 / np.arange(1, high - low + 1)
    tokens = random.choice(np.arange(low, high), (ROWS, LENGTH), p=weights / weights.sum())
    return tokens.astype(np.int32)


def usual_batches(count: int = 220, seed: int = 0) -> list[TokenRows]:
    random = np.random.default_rng(seed)
    return [text(random) for _ in range(count)]


def report_of(arrays: list[TokenRows], losses: list[np.ndarray] | None = None) -> BatchReport:
    """The report on an incident at step 150."""
    batches = [
        KeptBatch(
            tick=step,
            step=step,
            data_position=1000 + step,
            parts=(rows,),
            losses=() if losses is None else (losses[step],),
        )
        for step, rows in enumerate(arrays)
    ]
    first = ONSET - 8
    kept = KeptBatches(
        onset_tick=ONSET,
        peak_tick=ONSET + 1,
        before=tuple(batches[:first]),
        around=tuple(batches[first:]),
        counts=np.zeros(0, dtype=np.int64),
    )
    report = examine(kept)
    assert report is not None
    return report


class TestTokenCounts:
    def test_g2_is_the_log_likelihood_ratio_of_the_two_by_two_table(self) -> None:
        counts, run = np.array([30, 70]), np.array([10, 990])
        table = np.array([[30, 70], [10, 990]])
        expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
        by_hand = 2 * (table * np.log(table / expected)).sum()
        assert g2(counts, run)[0] == pytest.approx(by_hand)

    def test_equal_shares_have_no_score(self) -> None:
        assert g2(np.array([3, 7]), np.array([300, 700])) == pytest.approx(0.0, abs=1e-9)

    def test_a_token_that_the_run_has_never_seen_is_named_first(self) -> None:
        run = np.array([500, 300, 200])
        named = unusual_tokens(np.array([5, 3, 2, 0, 12]), run, 8)
        assert [token.id for token in named] == [4]
        assert named[0].run_share == 0.0
        assert named[0].share == pytest.approx(12 / 22)

    def test_few_occurrences_are_no_evidence(self) -> None:
        assert unusual_tokens(np.array([5, 3, 2, 0, 1]), np.array([500, 300, 200]), 8) == ()

    def test_nothing_is_named_without_a_run_to_compare_with(self) -> None:
        assert unusual_tokens(np.array([5, 3]), np.zeros(2, dtype=np.int64), 8) == ()


class TestRepetition:
    def test_a_phrase_repeated_is_near_one_and_distinct_text_is_zero(self) -> None:
        phrase = np.tile(np.array([3, 1, 4], dtype=np.int32), 20)[None, :LENGTH]
        distinct = np.arange(60, dtype=np.int32)[None]
        assert repetition(phrase)[0] > 0.9
        assert repetition(distinct)[0] == 0.0

    def test_padding_is_no_phrase(self) -> None:
        padded = np.concatenate([np.arange(10), np.full(50, -100)]).astype(np.int32)[None]
        assert repetition(padded)[0] == 0.0

    def test_short_sequences_repeat_nothing(self) -> None:
        assert repetition(np.zeros((2, 3), dtype=np.int32)).tolist() == [0.0, 0.0]


class TestExamine:
    def test_usual_batches_have_nothing_unusual(self) -> None:
        flagged = [report_of(usual_batches(seed=seed)) for seed in range(5)]
        assert sum(report.num_unusual_rows > 0 for report in flagged) <= 1

    def test_rows_of_rare_tokens_are_named_with_their_tokens(self) -> None:
        arrays = usual_batches()
        rare = np.random.default_rng(1).integers(380, 390, (2, LENGTH))
        arrays[ONSET][[2, 4]] = rare
        report = report_of(arrays)
        assert (report.step, report.data_position) == (ONSET, 1000 + ONSET)
        assert report.num_unusual_rows == 2
        assert sorted(row.row for row in report.rows[:2]) == [2, 4]
        assert report.rows[0].reasons == ("rare tokens",)
        assert {token.id for token in report.tokens} <= set(range(380, 390))
        assert len(report.tokens) == 8

    def test_a_repeated_phrase_of_usual_tokens_is_named(self) -> None:
        arrays = usual_batches()
        arrays[ONSET + 1][5] = np.tile(np.array([7, 11, 13, 17], dtype=np.int32), 16)
        report = report_of(arrays)
        assert report.step == ONSET + 1
        assert [row.row for row in report.rows if row.reasons] == [5]
        assert report.rows[0].reasons == ("repeated phrase",)
        assert {token.id for token in report.tokens} == {7, 11, 13, 17}

    def test_sequences_that_came_before_are_named(self) -> None:
        arrays = usual_batches()
        arrays[ONSET][1:4] = arrays[ONSET - 30][0:3]
        report = report_of(arrays)
        assert report.step == ONSET
        assert sorted(row.row for row in report.rows if row.reasons) == [1, 2, 3]
        assert report.rows[0].reasons == ("same as an earlier row",)

    def test_the_sequence_with_a_high_loss_is_named_and_nan_is_the_highest(self) -> None:
        arrays = usual_batches()
        random = np.random.default_rng(2)
        losses = [
            np.stack((random.normal(3, 0.1, ROWS), np.full(ROWS, 9.0), np.full(ROWS, 4.0)), axis=1)
            for _ in arrays
        ]
        losses[ONSET][1, 0] = 8.0
        losses[ONSET][3, 0] = math.nan
        report = report_of(arrays, losses)
        assert [row.row for row in report.rows[:2]] == [3, 1]
        assert report.rows[1].reasons == ("high loss",)
        assert report.rows[1].loss == 8.0
        assert report.rows[1].max_loss_place == 4
        assert math.isnan(report.rows[0].loss or 0.0)

    def test_what_is_far_from_onset_and_peak_is_not_named(self) -> None:
        arrays = usual_batches()
        arrays[ONSET + 40][0] = 395
        assert report_of(arrays).num_unusual_rows == 0

    def test_a_report_is_bounded_whatever_the_batch(self) -> None:
        random = np.random.default_rng(3)
        big = [random.integers(0, 300, (64, 2000)).astype(np.int32) for _ in range(6)]
        batches = tuple(KeptBatch(tick=i, step=i, parts=(rows,)) for i, rows in enumerate(big))
        kept = KeptBatches(
            onset_tick=2, peak_tick=2, before=(), around=batches, counts=np.zeros(0, dtype=np.int64)
        )
        report = examine(kept)
        assert report is not None
        assert len(report.rows) == MAX_ROWS
        assert all(len(row.token_ids) == MAX_TOKEN_IDS for row in report.rows)
        assert report.rows[0].num_tokens == 2000
        assert len(json.dumps(to_jsonable(report))) < 40_000


@functools.cache
def one_bad_row() -> BatchReport:
    arrays = usual_batches()
    arrays[ONSET][2] = 399
    return report_of(arrays)


class TestSaved:
    def test_a_report_comes_back_from_json(self) -> None:
        report = one_bad_row()
        saved = json.loads(json.dumps(to_jsonable(report), allow_nan=False))
        assert BatchReport.from_dict(saved) == report
        assert BatchReport.from_dict({**saved, "of a later version": 1}) == report

    @pytest.mark.parametrize(
        "damage",
        [{"rows": 3}, {"tick": "x"}, {"tokens": [{"name": 1}]}, {"usual": None}, {"step": None}],
    )
    def test_a_damaged_one_raises(self, damage: dict[str, object]) -> None:
        saved = to_jsonable(one_bad_row())
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            BatchReport.from_dict({**saved, **damage})

    def test_text_is_only_there_once_decoded(self) -> None:
        report = one_bad_row()
        assert all(row.text is None for row in report.rows)
        decoded = report.decoded(lambda ids: "".join(chr(97 + id % 26) for id in ids))
        assert decoded.tokens[0].text == chr(97 + 399 % 26)
        assert decoded.rows[0].text == chr(97 + 399 % 26) * LENGTH
