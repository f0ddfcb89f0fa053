"""Expectations: which observations each cause is known for, before any of it is measured.

The fit starts from this table, as if a few incidents of each cause had been seen, and moves away
from it with what the lab shows. Sources: the fault tables of the detection survey and the fault
signatures of small models (docs/detection.md); PaLM and OLMo 2 for rare and repeated tokens;
StableAdamW for a stale second moment; ViT-22B, small-scale proxies and PaLM's z-loss for logits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.core.causes import Cause

TYPICAL, POSSIBLE, UNUSUAL = 0.85, 0.4, 0.04
"""The share of incidents with such an observation that is assumed before the measurement."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The observations that a cause is known for; all others are unusual."""

    typical: str
    """Ids of observations, with spaces between them."""
    possible: str = ""

    def share(self, observation: str) -> float:
        """The share of incidents that is assumed to show the observation."""
        if observation in self.typical.split():
            return TYPICAL
        return POSSIBLE if observation in self.possible.split() else UNUSUAL


EXPECTATIONS: Mapping[Cause, Expected] = {
    Cause.HARD_BATCH: Expected("loss_burst"),
    Cause.RARE_TOKENS: Expected(
        "rare_tokens",
        "few_distinct_tokens loss_burst gradient_burst gradient_over_v log_z_grows",
    ),
    Cause.DUPLICATE_BATCH: Expected(
        "batch_repeated one_direction", "loss_fell gradient_fell updates_grew text_changed"
    ),
    Cause.DATA_MIX_SHIFT: Expected(
        "text_changed", "few_distinct_tokens rare_tokens loss_fell loss_level_up gradient_burst"
    ),
    Cause.LR_DISCONTINUITY: Expected(
        "lr_jumped",
        "loss_level_up loss_burst gradient_burst gradient_over_v updates_grew all_weights_jumped "
        "weights_grow activations_jumped activations_grow attention_logits_grow one_direction",
    ),
    Cause.OPTIMIZER_STATE_LOST: Expected(
        "resumes v_fell m_fell updates_grew", "count_back resume_gap v_fell_in_part"
    ),
    Cause.STALE_SECOND_MOMENT: Expected(
        "v_fell updates_grew gradient_over_v",
        "weights_grow all_weights_jumped activations_grow gradient_burst",
    ),
    Cause.EPSILON_REGIME: Expected("updates_shrank gradient_under_v"),
    Cause.ATTENTION_LOGIT_GROWTH: Expected(
        "attention_grows attention_logits_grow weights_grow", "gradient_grows"
    ),
    Cause.OUTPUT_LOGIT_DRIFT: Expected(
        "gains_grow log_z_grows weights_grow", "gradient_grows loss_creeps_up loss_level_up"
    ),
    Cause.FP16_OVERFLOW: Expected(
        "half_precision scale_fell",
        "loss_nonfinite gradient_nonfinite_first activations_grow scale_frozen",
    ),
    Cause.LOGIC_NAN: Expected("loss_nonfinite"),
    Cause.BIT_FLIP: Expected(
        "state_nonfinite_first",
        "gradient_nonfinite_first gradient_huge gradient_burst v_rose weights_jumped "
        "activations_jumped loss_level_up",
    ),
    Cause.BAD_DEVICE: Expected(
        "several_ranks gradient_intermittent", "gradient_huge gradient_burst v_rose"
    ),
    Cause.REPLICAS_OUT_OF_SYNC: Expected(
        "several_ranks weights_jumped all_weights_jumped",
        "activations_jumped activations_grow loss_level_up gradient_burst gradient_multiplied "
        "gradient_over_v updates_grew",
    ),
    Cause.LOADER_STALL: Expected("stalls waits_for_data", "slower"),
    Cause.SLOW_RANK: Expected("several_ranks slower", "stalls"),
    Cause.WRONG_RESUME: Expected(
        "resumes",
        "resume_gap order_broken batches_come_again weights_jumped all_weights_jumped "
        "activations_jumped loss_level_up activations_shrink gradient_fell",
    ),
    Cause.PARAMETERS_NOT_UPDATING: Expected(
        "m_fell v_fell", "v_fell_in_part updates_shrank group_frozen gradient_fell gradient_under_v"
    ),
    Cause.BATCH_SIZE_CHANGE: Expected("tokens_changed", "noisier"),
    Cause.LR_TOO_HIGH: Expected(
        "early",
        "attention_logits_grow activations_grow activations_jumped weights_grow never_learned "
        "gradient_burst gradient_intermittent loss_level_up",
    ),
    Cause.LOSS_REDUCTION_BUG: Expected(
        "gradient_multiplied", "loss_multiplied loss_level_up v_rose updates_grew gradient_over_v"
    ),
    Cause.WEIGHT_DECAY: Expected("weights_shrink", "activations_shrink updates_grew"),
    Cause.WRONG_SCHEDULE: Expected("lr_turned_up"),
}
"""By cause."""
