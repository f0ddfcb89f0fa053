"""The facts of a training state that a resume must restore, each one number."""

from typing import Final

Facts = dict[str, float]

STATE_SAVED: Final = "state saved"
"""Kind of the event that has the facts of a saved state, by name, under `state`."""

STEP: Final = "step"
"""The next step."""
WORLD: Final = "world"
"""Number of ranks."""
LAYOUT: Final = "layout"
"""crc32 of the shapes of the parameters that the first rank holds: norms of the same layout can be
compared to the last digit."""
PARAM_NORM: Final = "param_norm"
STATE_NORM: Final = "state/"
"""Prefix: L2 norm of one kind of optimizer state, such as `state/exp_avg`."""
OPTIMIZER_STEP: Final = "optimizer_step"
"""Updates that the optimizer has counted."""
MAX_OPTIMIZER_STEP: Final = "max_optimizer_step"
"""The largest count that is possible, where the exact one is not known."""
LR: Final = "lr"
LR_CHANGE: Final = "lr_change"
"""Size of the last change of the learning rate before the state was saved."""
FIRST_LR: Final = "first_lr/"
"""Prefix: the learning rate of the first steps of the run, from `first_lr/0` on."""
OPTION: Final = "option/"
"""Prefix: an option of the parameter groups; a crc32 if it is not a number, or differs between
groups."""
LOSS_SCALE: Final = "loss_scale"
GROWTH_TRACKER: Final = "growth_tracker"
"""Steps since the loss scale last changed."""
DATA_POSITION: Final = "data_position"
"""Of the next batch."""
LOADER_POSITION: Final = "loader_position"
"""Batches that a StatefulDataLoader has yielded in this epoch."""
AT_EPOCH_END: Final = "at_epoch_end"
"""1 if the data was exhausted: then it rightly starts again."""
BATCH_OFFSET: Final = "batch_offset"
"""Steps between where the journal has the first batch after the resume and where it belongs."""
BATCH_RESTARTED: Final = "batch_restarted"
"""1 if the first batch after the resume is the first of the run."""
BATCH_KNOWN: Final = "batch_known"
"""1 if an earlier attempt has shown which batch belongs there."""
RNG: Final = "rng/"
"""Prefix: crc32 of the state of a random number generator: torch, numpy or python."""
FIRST_RNG: Final = "first_rng"
"""`rng/torch` when the first loss of the run was recorded."""

FIRST_LRS = 4
"""Learning rates of the start of the run that are remembered: a schedule that starts again shows
at its second or third step."""
