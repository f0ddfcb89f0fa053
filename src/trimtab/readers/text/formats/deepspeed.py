"""DeepSpeed: its pipeline engine, DeepSpeed-Chat, and what any engine says between the records.

    steps: 20 loss: 7.5123 iter time (s): 0.812 samples/sec: 39.409
    epoch: 0|step: 19|ppo_ep: 1|act_loss: 0.0123|cri_loss: 0.0456|unsuper_loss: 0.0
    [...] [INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=2, lr=[9.65e-06], mom=[...]

The loss is that of the step, the time a mean over the interval. DeepSpeed-Chat counts its steps
anew in each epoch, and its loss is the actor's. A plain engine prints no loss at all.
"""

import re

import numpy as np

from trimtab.core.block import Column
from trimtab.core.signals import LOSS, STEP_SECONDS
from trimtab.readers.aliases import STEP, Alias
from trimtab.readers.table import Table
from trimtab.readers.text.grammar import NUMBER, Grammar, Line, Place
from trimtab.readers.text.layouts import Pairs
from trimtab.readers.text.parser import text_format
from trimtab.readers.text.windows import mark_window_means


def finish(table: Table) -> None:
    """Count steps across epochs, and mark window means."""
    mark_window_means(table, "iter time (s)")
    epoch, step = table.column("epoch"), table.column(STEP)
    moves = np.diff(step.values)
    restarts = (np.diff(epoch.values) > 0) & (moves <= 0)
    if not restarts.any():
        return
    shifts = np.concatenate([[0.0], np.cumsum(np.where(restarts, 1 - moves, 0.0))])
    table.replace(STEP, Column(step.values + shifts, step.present))
    table.add_note(
        f"Epochs in which the step count starts again, joined: {np.count_nonzero(restarts)}."
    )


DEEPSPEED = text_format(
    Grammar(
        name="deepspeed",
        trainer="DeepSpeed",
        sign=re.compile(r"steps: \d+ loss: |[Ee]poch: \d+ ?\| ?[Ss]tep: \d+ ?\|"),
        lines=(
            Line(
                mark="steps: ",
                pattern=re.compile(r"steps: (?P<step>\d+) (?=loss: )"),
                fields=Pairs(r"([^:]{1,99}): ", NUMBER, " ?"),
            ),
            Line(
                mark="step: ",
                pattern=re.compile(r"epoch: (?P<epoch>\d+)\|step: (?P<step>\d+)\|"),
                fields=Pairs(r"([^|:]{1,99}): *", NUMBER),
            ),
            Line(
                mark="Step: ",
                pattern=re.compile(r"Epoch: (?P<epoch>\d+) \| Step: (?P<step>\d+) \| "),
                fields=Pairs(r"([^|: ][^|:]{0,99}): *", NUMBER),
            ),
            Line(
                mark="verage reward score: ",
                pattern=re.compile(rf"verage reward score: (?P<average_reward>{NUMBER})"),
                place=Place.ABOVE,
            ),
            Line(
                mark="skipped=",
                pattern=re.compile(
                    rf"\] step=\d+, skipped=(?P<skipped_steps>\d+), lr=\[(?P<lr>{NUMBER})"
                ),
                place=Place.BELOW,
            ),
            Line(
                mark="OVERFLOW! ",
                pattern=re.compile(r"OVERFLOW! (?:.*, reducing to (?P<loss_scale>\d+))?"),
                place=Place.BELOW,
                count="n_overflow",
            ),
        ),
        meanings=(
            Alias(signal=LOSS, name="act_loss", remark="the loss of the actor"),
            Alias(signal=LOSS, name="Actor Loss", remark="the loss of the actor"),
            Alias(signal=STEP_SECONDS, name="iter time (s)"),
        ),
        finish=finish,
    )
)
"""The format."""
