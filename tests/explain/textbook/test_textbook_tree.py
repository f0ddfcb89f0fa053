"""Every leaf of the textbook tree is reached by a run with that fault."""

from collections.abc import Mapping

import numpy as np
import pytest
from tests.kit.synthetic import Array, add_spike, block_of, explained, falling_loss, troubled_run

from trimtab.core.block import Block, Event
from trimtab.core.causes import Cause, Standing
from trimtab.core.incidents import IncidentClass
from trimtab.core.run import RunFacts
from trimtab.core.signals import Quality
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.evidence.checks import ObservedOutcome
from trimtab.explain.textbook.tree import LEAVES, TEXTBOOK_TREE, Walk
from trimtab.judge import Judge
from trimtab.rulesets import TEXTBOOK


def reports(block: Block, facts: RunFacts | None = None) -> list[Diagnosis]:
    return explained(block, facts, "textbook")


def last(signals: Mapping[str, Array], facts: RunFacts | None = None) -> Diagnosis:
    return reports(block_of(signals), facts)[-1]


def walk_of(diagnosis: Diagnosis) -> Walk:
    assert diagnosis.walk is not None
    return diagnosis.walk


def calm(records: int) -> Array:
    return np.asarray(2.0 + np.tile([0.03, -0.03], records)[:records])


def spike(records: int = 400, at: int = 300) -> Array:
    return add_spike(calm(records), at)


def nan_from(at: int, records: int = 400) -> Array:
    loss = calm(records)
    loss[at:] = np.nan
    return loss


def with_value(base: float, records: int, **at: float) -> Array:
    values = np.full(records, base)
    for row, value in at.items():
        values[int(row[1:])] = value
    return values


def rising() -> Array:
    return np.concatenate([calm(200), 2.1 + 0.0001 * np.arange(210)])


LR_UP = np.linspace(1e-4, 2e-4, 410)
FLAT = np.full(410, 0.5)

COLLAPSES = with_value(64.0, 400, r310=0.5)
OVERFLOWS = with_value(0.5, 400, r300=np.inf)

CASES: dict[str, tuple[dict[str, Array], str | None, str]] = {
    "fp16 and a moving scale": (
        {"loss": nan_from(300), "loss_scale": with_value(64.0, 400, r200=128.0)},
        "fp16",
        "OVERFLOW",
    ),
    "fp16 and a collapsed scale": (
        {"loss": nan_from(300), "loss_scale": COLLAPSES},
        "fp16",
        "COLLAPSED_SCALE",
    ),
    "a scale that never moves, dtype unknown": (
        {"loss": nan_from(300), "loss_scale": np.full(400, 64.0)},
        None,
        "FROZEN_SCALE",
    ),
    "collapse without an infinite gradient": (
        {"loss": calm(400), "loss_scale": COLLAPSES},
        None,
        "COLLAPSED_SCALE",
    ),
    "NaN in fp32": ({"loss": nan_from(300)}, "fp32", "DESTRUCTIVE_UPDATE"),
    "gradient first": (
        {"loss": nan_from(300), "grad_norm": with_value(0.5, 400, r299=np.inf)},
        "bf16",
        "GRADIENT_FIRST",
    ),
    "a weight norm is infinite": (
        {"loss": calm(400), "param_norm": with_value(9.0, 400, r300=np.inf)},
        None,
        "CORRUPTED_STATE",
    ),
    "norm 30x": (
        {"loss": spike(), "grad_norm": with_value(0.5, 400, r300=16.0)},
        None,
        "LONG_TAIL",
    ),
    "norm 29x, LR jump": (
        {
            "loss": spike(),
            "grad_norm": with_value(0.5, 400, r300=14.5),
            "lr": np.repeat([1e-4, 3e-4], [299, 101]),
        },
        None,
        "LR_JUMPED",
    ),
    "same batch": (
        {
            "loss": spike(),
            "lr": np.full(400, 1e-4),
            "fingerprint": with_value(0.0, 400, r300=7.0, r250=7.0),
        },
        None,
        "SAME_BATCH",
    ),
    "nothing recorded but the loss": ({"loss": spike()}, None, "SPIKE_UNEXPLAINED"),
    "not back": ({"loss": np.concatenate([calm(300), calm(100) + 1])}, None, "PERSISTENT"),
    "too early": ({"loss": spike(303)}, None, "TOO_EARLY"),
    "inf gradient, a scale": (
        {
            "loss": calm(400),
            "grad_norm": OVERFLOWS,
            "loss_scale": with_value(64.0, 400, r301=32.0),
        },
        None,
        "OVERFLOW",
    ),
    "inf gradient, fp32": ({"loss": calm(400), "grad_norm": OVERFLOWS}, "fp32", "HEALTHY"),
    "inf gradient, dtype unknown": ({"loss": calm(400), "grad_norm": OVERFLOWS}, None, "HEALTHY"),
    "inf gradient, bf16": ({"loss": calm(400), "grad_norm": OVERFLOWS}, "bf16", "OVERFLOW"),
    "LR rising with the loss": ({"loss": rising(), "lr": LR_UP}, None, "SCHEDULE"),
    "weight norm and a rise": (
        {"loss": rising(), "lr": FLAT, "param_norm": np.geomspace(1.0, 4.5, 410)},
        None,
        "WEIGHT_DECAY",
    ),
    "gradient rising": (
        {"loss": rising(), "lr": FLAT, "grad_norm": np.linspace(0.5, 1.0, 410)},
        None,
        "TOO_HOT",
    ),
    "plateau": ({"loss": rising(), "lr": FLAT, "grad_norm": FLAT}, None, "PLATEAU"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_walk_ends_at_the_right_leaf(name: str) -> None:
    signals, dtype, leaf = CASES[name]
    assert walk_of(last(signals, RunFacts(dtype=dtype))).leaf is LEAVES[leaf]


def test_every_leaf_is_tested() -> None:
    assert {leaf for _, _, leaf in CASES.values()} == set(LEAVES)


def test_every_question_leads_to_one_that_exists() -> None:
    for question in TEXTBOOK_TREE.values():
        for end in (question.yes, question.no):
            assert end in LEAVES or end in TEXTBOOK_TREE


def test_a_signal_that_was_not_recorded_is_reported_and_takes_the_no_branch() -> None:
    walk = walk_of(last({"loss": spike()}))
    by_id = {answer.id: answer for answer in walk.answers}
    assert by_id["2.3a"].result.outcome is ObservedOutcome.NOT_RECORDED
    assert by_id["2.3a"].goes_to == "2.3b"


def test_a_plateau_overrides_the_state_machine() -> None:
    signals, *_ = CASES["plateau"]
    judge = Judge(rules=TEXTBOOK)
    judge.update(block_of(signals))
    judge.finish()
    assert judge.incidents[-1].incident_class is IncidentClass.SILENT
    diagnosis = last(signals)
    assert diagnosis.incident.incident_class is IncidentClass.PLATEAU
    assert diagnosis.incident_class is IncidentClass.PLATEAU


def test_the_troubled_run_is_diagnosed() -> None:
    spiked, nan = reports(troubled_run())[-2:]
    assert spiked.incident.onset.step == 600
    assert spiked.incident_class is IncidentClass.RECOVERED
    assert spiked.cause is Cause.RARE_TOKENS
    assert nan.incident.onset.step == 900
    assert nan.incident_class is IncidentClass.DIVERGENT


def test_a_nan_that_stays_has_the_destructive_update_first() -> None:
    hypothesis = last({"loss": nan_from(300)}).hypotheses[0]
    assert hypothesis.standing is Standing.SUPPORTED
    assert "wrote NaN into a parameter" in hypothesis.statement


def test_hypotheses_are_ranked_by_standing() -> None:
    block = troubled_run()
    for report in reports(block):
        order = [list(Standing).index(h.standing) for h in report.hypotheses]
        assert order == sorted(order)


def test_a_resume_shortly_before_supports_lost_optimizer_state() -> None:
    columns, step = block_of({"loss": spike()}).columns, np.arange(1, 401)
    event = Event(kind="resume", tick=290, step=291)
    attempt = (np.arange(400) >= 280).astype(np.int64)
    for resumed in (
        Block.from_columns(columns, step=step, events=(event,)),
        Block.from_columns(columns, step=step, attempt=attempt),  # seen only by the step
    ):
        causes = {h.cause: h for h in reports(resumed)[-1].hypotheses}
        assert causes[Cause.OPTIMIZER_STATE_LOST].standing is Standing.SUPPORTED


def test_a_steep_warm_up_in_a_thinned_log_is_no_jump() -> None:
    lr = np.geomspace(1e-6, 1e-2, 400)  # every record 2 % more
    lr_steep = np.geomspace(1e-20, 1e-2, 400)  # every record 11 % more
    for rates in (lr, lr_steep**2):
        walk = walk_of(last({"loss": spike(), "lr": rates}))
        assert walk.leaf is LEAVES["SPIKE_UNEXPLAINED"]


def test_a_signal_that_is_not_raw_says_so() -> None:
    block = block_of({"loss": spike(), "grad_norm": with_value(0.5, 400, r300=16.0)})
    clipped = Block.from_columns(
        block.columns, step=block.step, qualities={"grad_norm": Quality.POST_CLIP}
    )
    answers = {a.id: a for a in walk_of(reports(clipped)[-1]).answers}
    assert "post-clip" in answers["2.3a"].result.observation


def test_symptoms_are_numbers_and_what_is_not_recorded_is_none() -> None:
    loss = add_spike(falling_loss(1200), 599)
    report = next(r for r in reports(block_of({"loss": loss})) if r.incident.onset.step == 600)
    symptoms = report.symptoms
    assert symptoms.loss_before == pytest.approx(2.1, abs=0.1)
    assert symptoms.loss_peak == pytest.approx(4.6, abs=0.1)
    assert symptoms.loss_after_50 == pytest.approx(2.1, abs=0.1)
    assert symptoms.loss_after_500 is None  # a later incident had begun: those are its records
    assert symptoms.grad_norm_peak is None
    assert symptoms.lr is None
    assert symptoms.data_position is None


def test_cost_counts_steps_time_and_tokens() -> None:
    signals = {
        "loss": spike(),
        "step_seconds": np.full(400, 2.0),
        "tokens_per_second": np.full(400, 100.0),
    }
    cost = last(signals).cost
    assert cost.seconds == cost.steps * 2.0
    assert cost.tokens == cost.steps * 200.0
    assert last({"loss": spike()}).cost.seconds is None


def test_odd_tokens_name_the_cause_where_the_norm_does_not() -> None:
    signals = {
        "loss": spike(),
        "grad_norm": with_value(0.5, 400, r300=14.0),  # 28 times the mean: not 30
        "token_rarity": 5.3 + 0.05 * np.tile([1.0, -1.0], 200),
        "unique_token_share": 0.3 + 0.01 * np.tile([1.0, -1.0], 200),
    }
    assert last(signals).cause is Cause.HARD_BATCH
    signals["unique_token_share"][300] = 0.002
    diagnosis = last(signals)
    assert walk_of(last(signals)).leaf is LEAVES["SPIKE_UNEXPLAINED"]
    assert diagnosis.cause is Cause.RARE_TOKENS
    assert "unique_token_share 0.002" in diagnosis.root_cause


def test_fp32_rules_an_overflow_out_whatever_the_gradient_did() -> None:
    signals = {"loss": nan_from(300), "grad_norm": with_value(0.5, 400, r299=np.inf)}
    for dtype, standing in (("fp32", Standing.RULED_OUT), ("fp16", Standing.SUPPORTED)):
        hypotheses = last(signals, RunFacts(dtype=dtype)).hypotheses
        assert {h.cause: h.standing for h in hypotheses}[Cause.FP16_OVERFLOW] is standing


def test_a_cause_that_the_tree_names_and_a_check_rules_out_stays_open() -> None:
    signals = {"loss": calm(400), "loss_scale": with_value(64.0, 400, r310=0.5)}
    for dtype, standing in (("fp16", Standing.SUPPORTED), ("bf16", Standing.OPEN)):
        diagnosis = last(signals, RunFacts(dtype=dtype))
        assert diagnosis.cause is Cause.FP16_OVERFLOW
        named = next(h for h in diagnosis.hypotheses if h.cause is Cause.FP16_OVERFLOW)
        assert named.standing is standing
        assert "lowest loss scale 0.5" in {item.observation for item in named.evidence}
