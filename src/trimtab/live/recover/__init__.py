"""Undo: proven harm to weights or optimizer is taken back, inside `optimizer.step()`.

undo           what happens in the hooks of an update: find, restore, go on
undo_plan      which snapshots are restored, or why none is
scaler_watch   steps that a GradScaler skips, so that no hook runs
tracked_optimizer  what is known of one optimizer and its updates
rules          what proves harm, and when an undo would not help; pure
memory_watch   bits that changed between two updates though no code wrote them
audit          weights and moments that training cannot have made
trial          lets an older state and the present one compute the loss of the same new batches
trial_rule     when the older one is better, and what speaks for purpose; pure
traces         all that a forward pass may change, and how it is undone
experiments    what a few forward passes on remembered batches say about an incident
relaunch       what would help where an undo cannot: said, or done with ladder.unattended
undo_report    log lines and journal events
"""
