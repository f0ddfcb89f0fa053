"""What a run is and records bounds which causes are possible, and how sure one can be."""

import numpy as np
import pytest
from tests.kit.synthetic import block_of, falling_loss

from trimtab.core.causes import Cause
from trimtab.core.run import RunFacts
from trimtab.explain.causes.plausible import base_rates
from trimtab.explain.causes.ranking import SUPPORTED
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence import ALL_OBSERVATIONS
from trimtab.judge import Judge

LENGTH, AT = 600, 300


def spiked(facts: RunFacts | None = None, **signals: np.ndarray) -> Diagnosis:
    loss, norm = falling_loss(LENGTH), np.full(LENGTH, 0.5)
    loss[AT : AT + 10] += 3.0
    norm[AT] = 40.0
    run = block_of({"loss": loss, "grad_norm": norm, **signals})
    judge = Judge()
    judge.update(run)
    judge.finish()
    return judge.explain(judge.incidents[0], run, facts)


def possible(diagnosis: Diagnosis) -> set[Cause | None]:
    assert diagnosis.ranking is not None
    return {candidate.cause for candidate in diagnosis.ranking.candidates}


def test_curves_alone_name_no_cause() -> None:
    diagnosis = spiked()
    assert diagnosis.cause is None
    assert "Not known; possibly F02" in diagnosis.root_cause
    assert "guard.record" in diagnosis.remedy
    assert all((h.probability or 0) < SUPPORTED for h in diagnosis.hypotheses if h.cause)


@pytest.mark.parametrize(
    ("facts", "signals", "impossible"),
    [
        (RunFacts(), (), {Cause.LR_DISCONTINUITY, Cause.WRONG_SCHEDULE}),
        (RunFacts(dtype="bf16"), (), {Cause.FP16_OVERFLOW}),
        (RunFacts(optimizer="SGD"), (), {Cause.STALE_SECOND_MOMENT, Cause.EPSILON_REGIME}),
        (RunFacts(ranks=1), (), {Cause.REPLICAS_OUT_OF_SYNC}),
        (RunFacts(), ("eval/wer",), {Cause.RARE_TOKENS, Cause.ATTENTION_LOGIT_GROWTH}),
        (RunFacts(), ("reward",), {Cause.RARE_TOKENS}),
    ],
)
def test_what_a_run_cannot_have_is_not_a_hypothesis(
    facts: RunFacts, signals: tuple[str, ...], impossible: set[Cause]
) -> None:
    columns = {name: np.linspace(0.9, 0.1, LENGTH) for name in signals}
    assert possible(spiked(facts, **columns)).isdisjoint(impossible)


def test_a_trainer_of_language_models_may_have_tokens_and_attention() -> None:
    assert Cause.ATTENTION_LOGIT_GROWTH in possible(spiked(RunFacts(trainer="Megatron-LM")))


def test_the_data_file_knows_every_cause_and_only_known_observations() -> None:
    rates = base_rates()
    ids = {cause.id for cause in Cause}
    assert set(rates["decides"]) == ids
    for names in (*rates["decides"].values(), rates["curves"], rates["exact"]):
        assert set(names) <= set(ALL_OBSERVATIONS)
    assert set(rates["by construction"]["shares"]) <= set(ALL_OBSERVATIONS)
    for table in (*rates["shapes"].values(), *rates["kinds"].values(), rates["all"]):
        assert set(table) <= {*ids, "outside"}
