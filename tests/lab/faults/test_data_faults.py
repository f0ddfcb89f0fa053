"""Faults in the data: which batches the loop receives."""

from typing import Any

import numpy as np
import pytest
from tests.kit.cases import some_of
from tests.kit.observing import with_observer  # noqa: F401
from tests.lab.observing import ONSET, STEPS, STILL, Bench, Observed
from tests.lab.training import per_step

from trimtab.core import signals
from trimtab.lab.corpus.data import CorpusSplit, TokenCorpus
from trimtab.lab.corpus.text import Source
from trimtab.lab.faults.data_faults import (
    DegenerateTokens,
    DuplicateBatch,
    HardBatch,
    MixShift,
    SmallerBatch,
)


def _windows(loop: Observed, step: int) -> Any:
    """The rows of a batch, each with the target of its last token."""
    tokens, targets = loop.tokens[step], loop.targets[step]
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    return np.concatenate((tokens, targets[:, -1:]), axis=1)


def _changed_rows(loop: Observed, clean: Observed) -> dict[int, list[int]]:
    """The rows that differ from the clean run, by step; only steps with such rows."""
    found = {}
    for step in clean.tokens:
        rows = (_windows(loop, step) != _windows(clean, step)).any(axis=1)
        if rows.any():
            found[step] = np.flatnonzero(rows).tolist()
    return found


@pytest.mark.parametrize(("severity", "rows"), some_of([(1.0, 8), (0.5, 4)], (0.5, 4)))
def test_f01_shuffles_rows_of_one_batch(bench: Bench, severity: float, rows: int) -> None:
    run, clean = bench.pair(HardBatch(onset=ONSET, severity=severity, seed=0), optimizer=STILL)
    assert _changed_rows(run.loop, clean.loop) == {ONSET: list(range(rows))}
    found, expected = (_windows(one.loop, ONSET) for one in (run, clean))
    # Every token is still there, in a different order in each row.
    assert (np.sort(found) == np.sort(expected)).all()
    assert run.loop.truth == {"data_positions": [ONSET], "rows": rows}
    rises = per_step(run.block, "max_token_loss")[ONSET], per_step(clean.block, "loss")[ONSET]
    assert rises[0] > rises[1]


@pytest.mark.parametrize(("seed", "kind"), [(1, "rare tokens"), (8, "repeated phrase")])
def test_f02_puts_rare_tokens_into_some_batches(
    bench: Bench, corpus: TokenCorpus, seed: int, kind: str
) -> None:
    fault = DegenerateTokens(onset=ONSET, severity=0.5, seed=seed)
    run, clean = bench.pair(fault, optimizer=STILL)
    assert fault.truth["kind"] == kind
    assert fault.end is not None
    hit = range(ONSET, fault.end)
    rows = list(range(round(8 * fault.strength)))
    assert _changed_rows(run.loop, clean.loop) == dict.fromkeys(hit, rows)
    assert fault.truth["data_positions"] == list(hit)
    counts = corpus.counts()
    rarest = np.sort(counts)[47]
    windows = [_windows(run.loop, step)[rows] for step in hit]
    assert all(counts[tokens].max() <= rarest for tokens in windows)
    periods = {_period(tokens) for tokens in windows}
    if kind == "rare tokens":
        assert min(periods) > 4
    else:
        assert periods <= {1, 2, 3, 4}
        assert 1 in periods  # a phrase of a single token is the easiest to get wrong


def _period(windows: Any) -> int:
    """The number of tokens after which all rows repeat; their length if they do not."""
    length = windows.shape[1]
    repeats = (p for p in range(1, length) if (windows[:, p:] == windows[:, :-p]).all())
    return next(repeats, length)


def test_f03_repeats_the_batch_before_the_onset(bench: Bench) -> None:
    fault = DuplicateBatch(onset=ONSET, severity=0.0, seed=0)
    run, clean = bench.pair(fault, optimizer=STILL)
    found, expected = (per_step(one.block, signals.FINGERPRINT) for one in (run, clean))
    assert len(set(expected.values())) == STEPS
    assert fault.end == ONSET + 4
    same = {step: ONSET - 1 if fault.covers(step) else step for step in range(STEPS)}
    assert found == {step: expected[source] for step, source in same.items()}
    assert fault.truth == {"data_positions": [ONSET - 1]}


SOURCES = [(1, Source.PROSE), (0, Source.TABLES), (3, Source.GARBAGE)]


@pytest.mark.parametrize(("seed", "source"), some_of(SOURCES, SOURCES[2]))
def test_f04_takes_rows_from_one_source(
    bench: Bench, corpus: TokenCorpus, seed: int, source: Source
) -> None:
    fault = MixShift(onset=ONSET, severity=0.5, seed=seed)
    run, clean = bench.pair(fault, optimizer=STILL)
    rows = list(range(4))
    hit = range(ONSET, STEPS)
    assert _changed_rows(run.loop, clean.loop) == dict.fromkeys(hit, rows)
    assert fault.truth == {"source": source.value}
    text = corpus.tokens(CorpusSplit.TRAIN)[source].tobytes()
    for window in np.concatenate([_windows(run.loop, step)[rows] for step in hit]):
        assert window.astype(np.uint16).tobytes() in text


def test_f20_leaves_the_first_rows(bench: Bench) -> None:
    fault = SmallerBatch(onset=ONSET, severity=1.0, seed=0)
    run, clean = bench.pair(fault)
    for step in range(STEPS):
        rows = 2 if step >= ONSET else 8
        assert (run.loop.tokens[step] == clean.loop.tokens[step][:rows]).all()
        assert (run.loop.targets[step] == clean.loop.targets[step][:rows]).all()
    tokens = per_step(run.block, signals.TOKENS)
    assert tokens == {step: 16.0 * (2 if step >= ONSET else 8) for step in range(STEPS)}
    assert fault.truth == {"rows": 2}
