"""Rules on running it: whether trouble will be seen, and what going back will cost."""

from trimtab.checks.plan import RollbackCost
from trimtab.checks.rule import Fault, advice, error, warning

COSTLY_SECONDS = 2 * 3600
"""Half an hour lost to a restart is what stability guides plan for; five hours is their warning."""

COSTLY_SHARE = 0.05
"""The same as a share of the run, where the time of a step is not known."""

SHORT_RUN_STEPS = 2000
"""A run of fewer steps, whose time is not known, is rather made again than saved on its way."""

LOGGED_OFTEN = 100
"""Steps. Megatron-LM logs every 100, torchtitan every 10; HF's default is 500, in which the BLOOM
spike of 2022-04-12 comes and goes sixteen times over."""


@error("TT080", "There are no checkpoints", source="Llama 3: 466 interruptions in 54 days")
def no_checkpoints(
    checkpoint_steps: int, steps: int | None = None, step_seconds: float | None = None
) -> Fault | None:
    """Whatever stops the run, a crash as well as a NaN, costs all of it."""
    if steps is not None and step_seconds is not None:
        short = steps * step_seconds <= COSTLY_SECONDS
    else:
        short = steps is not None and steps < SHORT_RUN_STEPS
    if short:
        return None
    if checkpoint_steps <= 0:
        what = "nothing is saved during the run"
    elif steps is not None and checkpoint_steps >= steps:
        what = f"the first checkpoint comes at step {checkpoint_steps:,}, the end at {steps:,}"
    else:
        return None
    return Fault(what, {"checkpoint_steps": _good_cadence(steps)})


@warning(
    "TT081",
    "A rollback is expensive",
    source="stability guides: every 1,000 steps costs 30 minutes, every 100,000 five hours",
)
def costly_rollback(
    checkpoint_steps: int,
    rollback: RollbackCost | None = None,
    steps: int | None = None,
    step_seconds: float | None = None,
) -> Fault | None:
    """Trouble that is seen late sends the run back to the last checkpoint before its onset, and
    every step since is made again."""
    if rollback is None or (steps is not None and checkpoint_steps >= steps):
        return None  # there is nothing to go back to; TT080 reports it
    if rollback.seconds is not None:
        dear = rollback.seconds > COSTLY_SECONDS
    else:
        share = 0 if steps is None else COSTLY_SHARE * steps
        dear = steps is not None and rollback.steps > max(share, 2 * rollback.detection)
    if not dear:
        return None
    better = _good_cadence(steps)
    if step_seconds:
        better = max(int(float(f"{COSTLY_SECONDS / 4 / step_seconds:.0e}")), 1)
    if better >= checkpoint_steps:
        better = max(checkpoint_steps // 4, 1)
    what = f"a rollback costs up to {rollback}"
    if steps:
        what += f", {100 * rollback.steps / steps:.0f} % of the run"
    return Fault(what, {"checkpoint_steps": better})


@warning(
    "TT082",
    "Retention may delete the last good checkpoint",
    source="pocket-tts issue 262: keep 3 deleted the last healthy ones; PaLM went back 100 steps",
)
def short_retention(
    checkpoint_steps: int, keep_checkpoints: int, detection_delay: int
) -> Fault | None:
    """If trouble is older than the oldest checkpoint when it is seen, all that is left to go back
    to is already damaged."""
    if checkpoint_steps <= 0 or keep_checkpoints <= 0:
        return None
    # Right after a save, the oldest of k checkpoints is k - 1 intervals old.
    reach = (keep_checkpoints - 1) * checkpoint_steps
    if reach >= detection_delay:
        return None
    enough = -(-detection_delay // checkpoint_steps) + 1
    kept = f"{keep_checkpoints} kept checkpoint{'s' if keep_checkpoints > 1 else ''}"
    return Fault(
        f"{kept}: right after a save the oldest is {reach:,} steps old, and trouble may be "
        f"{detection_delay:,} steps old when it is seen",
        {"keep_checkpoints": enough},
    )


@warning(
    "TT083",
    "The logger hides NaN",
    source="measured: transformers 5.22.2 logs loss 0.0 with NaN weights; trl issue 6702",
)
def hidden_nan(nan_filter: bool) -> Fault | None:
    """A NaN or infinite loss is left out of the logged mean, so a dead run logs a healthy loss, or
    0.0, and goes on saving."""
    if not nan_filter:
        return None
    return Fault("NaN and infinite losses are filtered out of the log", {"nan_filter": False})


@warning(
    "TT084",
    "The loss is logged too rarely",
    source="stability guides log every 10 steps; BLOOM's spike was over in 30",
)
def rare_logs(log_steps: int) -> Fault | None:
    """A spike lasts some tens of steps and its warning four; between two points of such a log both
    come and go unseen."""
    if 0 < log_steps <= LOGGED_OFTEN:
        return None
    what = f"one loss in {log_steps:,} steps" if log_steps else "the loss is never logged"
    return Fault(what, {"log_steps": 10})


@advice(
    "TT085",
    "The run has no fixed seed",
    source="Gemini 2.5 replays suspicious steps; Megatron-LM's rerun engine",
)
def no_seed(seeded: bool) -> Fault | None:
    """Without it no step can be replayed, and replay is what distinguishes a bad batch from a bad
    device."""
    if seeded:
        return None
    return Fault("weights and data order come from a random seed", {"seeded": True})


@warning(
    "TT086",
    "A resume does not restore the data position",
    source="F18 of the catalogue; transformers issue 11284, datasets issue 8308",
)
def lost_data_position(restores_data: bool) -> Fault | None:
    """The run sees the first part of its data again, or a different order than before, and the loss
    falls or rises for no reason in the model."""
    if restores_data:
        return None
    return Fault("a resumed run begins its data again", {"restores_data": True})


@error(
    "TT087",
    "Checkpoints cannot be resumed: no optimizer state",
    source="F06 of the catalogue; transformers issue 25849",
)
def no_optimizer_state(saves_optimizer: bool) -> Fault | None:
    """A resume starts with empty moments: the first updates are several times too large and the
    learned scale of every weight is gone."""
    if saves_optimizer:
        return None
    return Fault("the optimizer's state is not saved or not loaded", {"saves_optimizer": True})


@advice("TT088", "A resume does not restore the random generators", source="F18 of the catalogue")
def lost_generators(saves_rng: bool) -> Fault | None:
    """Dropout and sampling differ from the uninterrupted run, so a resume cannot be checked against
    it."""
    if saves_rng:
        return None
    return Fault(
        "the state of the random generators is not saved or not loaded", {"saves_rng": True}
    )


@warning(
    "TT089",
    "Nobody looks for NaN",
    source="ByteRobust: NaN is the slowest class of incident, 4,289 s on average",
)
def no_nan_check(nan_check: bool) -> Fault | None:
    """One NaN gradient makes every weight NaN at the next update, and the checkpoints after it
    too."""
    if nan_check:
        return None
    return Fault("the trainer's check of losses and gradients is off", {"nan_check": True})


@advice(
    "TT090", "Nothing is held out", source="Marin: train loss moved at a data shift, eval did not"
)
def no_evaluation(eval_steps: int, steps: int | None = None) -> Fault | None:
    """A change of the data moves the training loss and not the held-out one; without it this cannot
    be distinguished from damage."""
    if eval_steps > 0:
        return None
    return Fault("no loss on held-out data", {"eval_steps": _good_cadence(steps)})


def _good_cadence(steps: int | None) -> int:
    """Steps between two checkpoints to begin with: 1,000, or a fiftieth of a shorter run."""
    return 1000 if steps is None else max(min(1000, steps // 50), 1)
