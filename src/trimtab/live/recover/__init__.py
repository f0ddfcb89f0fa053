"""Returning to an earlier step, at the boundary between two steps of `guard.steps`.

    end of a step --> an order to roll back?  settle --> put --> rewind tape, judge, gate --> RNG
                  `-> a snapshot due?         take
                  --> next batch, from the tape or from the loader

recovery.py     what happens at a boundary: snapshots, and rollbacks carried out
snapshots.py    which snapshots there are, the same ones on every rank
order.py        what is to be done at a boundary
rank_orders.py  the first rank decides, all ranks carry it out at the same boundary
boundary.py     what a snapshot does not hold of a boundary: data position, telemetry, tokens seen
holds.py        options of optimizers that stay as they were, put in for the time of an update
memory.py       how many snapshots fit into host memory
inputs.py       what the user gives: schedulers and other state, refused if it cannot work
decide/         what to do, on the first rank
paired_probe.py known-good batches through the present weights
traceless.py    forward passes that leave no trace
quarantine.py   data positions and sources that are passed over, also after a relaunch
experiments/    steps are done again with one thing changed
rollback_report.py a rollback in the log and the journal
"""
