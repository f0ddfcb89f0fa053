"""Non-finite values, the slow rise and the loss scale."""

import math

import numpy as np
import pytest
from tests.kit.synthetic import block_of

from trimtab.core.block import Block, Column
from trimtab.core.findings import Finding, Symptom
from trimtab.detect.state.hard_limits import NonFinite
from trimtab.detect.textbook import TextbookRise, TextbookScale, TextbookThresholds

CONFIG = TextbookThresholds()


def steps(findings: list[Finding]) -> list[int]:
    return [finding.step for finding in findings]


class TestNonFinite:
    def test_one_alarm_per_stretch(self) -> None:
        loss = np.array([1.0, np.nan, np.nan, 2.0, np.inf, 1.0, -np.inf])
        assert steps(NonFinite().update_many(block_of({"loss": loss}))) == [2, 5, 7]

    def test_missing_is_not_nan(self) -> None:
        column = Column(np.full(3, np.nan), np.array([True, False, True]))
        block = Block.from_columns({"loss": column}, step=np.arange(3))
        assert steps(NonFinite().update_many(block)) == [0]

    def test_a_norm_is_found_while_the_loss_is_finite(self) -> None:
        block = block_of({"loss": np.ones(3), "param_norm": np.array([1.0, np.inf, np.inf])})
        (finding,) = NonFinite().update_many(block)
        assert finding.symptom is Symptom.NONFINITE_NORM
        assert finding.signal == "param_norm"
        assert math.isinf(finding.value)

    def test_findings_come_in_order_of_tick(self) -> None:
        block = block_of({"loss": np.array([1.0, np.nan]), "grad_norm": np.array([np.inf, 1.0])})
        assert [f.signal for f in NonFinite().update_many(block)] == ["grad_norm", "loss"]

    def test_unknown_signals_may_be_infinite(self) -> None:
        assert NonFinite().update_many(block_of({"perplexity": np.array([np.inf])})) == []


class TestRise:
    def rise(self, loss: np.ndarray) -> list[int]:
        return steps(TextbookRise(CONFIG).update_many(block_of({"loss": loss}, first_step=0)))

    def test_200_rises_in_a_row_are_a_divergence(self) -> None:
        assert self.rise(np.arange(200.0)) == []
        assert self.rise(np.arange(201.0)) == [200]

    def test_a_rise_is_reported_once(self) -> None:
        loss = np.concatenate([np.arange(500.0), np.arange(300.0)])
        assert self.rise(loss) == [200, 700]

    @pytest.mark.parametrize("breaker", [99.0, np.nan, np.inf])
    def test_a_loss_that_does_not_rise_starts_a_new_count(self, breaker: float) -> None:
        loss = np.arange(250.0)
        loss[100] = breaker
        assert self.rise(loss) == []

    def test_how_the_run_is_cut_does_not_matter(self) -> None:
        block = block_of({"loss": np.concatenate([np.arange(500.0), np.arange(300.0)])})
        for size in (1, 7, 199, 200, 201):
            detector = TextbookRise(CONFIG)
            found = [f for piece in block.cut(size) for f in detector.update_many(piece)]
            assert steps(found) == [201, 701]


def test_a_scale_under_one_is_a_collapse_reported_once_per_fall() -> None:
    scale = np.array([4.0, 1.0, 0.5, 0.25, 2.0, 0.5])
    assert steps(TextbookScale(CONFIG).update_many(block_of({"loss_scale": scale}))) == [3, 6]


def test_without_a_scale_nothing_is_found() -> None:
    assert TextbookScale(CONFIG).update_many(block_of({"loss": np.ones(3)})) == []
