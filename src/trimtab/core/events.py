"""The events of a journal that explanations and reports depend on."""

NOTE = "note"
"""A person's note. Facts: `text`, `author`, `clock`, `incident` if it is a follow-up of one, and
`dismiss` if it says that one needs nothing."""

UNDO = "undo"
"""Weights and optimizer were restored from a snapshot. Facts: `why`, `how_sure`, `tensor`,
`to_step`, `updates_lost`, `is_hardware` where a bit flipped in memory, `is_ordered` where the user
asked for it, and `gain` where the restored state had won a trial, in nat."""

UNDO_OUTCOME = "undo outcome"
"""Some steps after an undo: whether the loss is again what it was before the harm. Facts:
`undone_at`, `helped`, `loss_before` the restored state, `loss_before_fault` where the loss showed
it, `loss_after`, `gained` after a trial, `because` where code has brought the harm back; `showed`
is False where the loss never left its level, so that `helped` cannot be told."""

BUFFER_REPAIRED = "buffer repaired"
"""Running statistics of normalization layers that were not finite were replaced by those of a
snapshot. Facts: `tensor`, `sentence`."""

TRIAL = "trial of states"
"""An older state and the present one have computed the loss of the same new batches, and nothing
follows. Facts: `outcome`."""

ROLLBACK_PROPOSED = "rollback proposed"
"""The older state was better, and a person decides. Facts: `gain` in nat, `updates_lost`, `because`
(why it is not restored unasked), `sentence`."""

EXPERIMENT = "experiment"
"""A few forward passes on remembered batches. Facts: `name` ("again", "first_nonfinite", "fp32" or
"half"), `answer` in one word, `sentence`; "again" has the `loss` that `batch_loss` gave."""

SETTING_CHANGED = "setting changed"
"""An option of an optimizer, such as its weight decay, is another one than before. Facts: `name`,
`before`, `after`."""

RELAUNCH = "relaunch"
"""The run has ended itself, to be started again from a proven checkpoint. Facts: `reason`,
`bad_data`, data positions and fingerprints of the steps around the onset, which the next run
discards."""

UNDO_REFUSED = "not undone as asked"
"""The user asked for an undo that is not possible; nothing was harmed. Facts: `why`, `because`."""

NOT_APPLIED = "step not applied"
"""The loop recorded a step and did not apply it, as loops do that skip bad batches themselves; it
is written before the record of its step. Facts: `why`."""

NOT_UNDONE = "harm not undone"
"""Harm was proven and not undone. Facts: `why`, `how_sure`, `tensor`, `because`,
`is_hardware`."""

SLOW_RANK = "slow rank"
"""One rank takes longer than the others, again and again. Facts: `rank`, `host`, and `times`, how
many times as long as the mean of the others."""


PLANNED_WORDS = ("change", "phase", "stage", "freez", "switch", "merg", "curriculum")
"""Words with which people announce what they do on purpose: "unfreeze", "phase 2"."""


def is_announced(kind: str) -> bool:
    """Return whether an event of the user's loop announces a change."""
    folded = kind.casefold()
    return kind != SETTING_CHANGED and any(word in folded for word in PLANNED_WORDS)
