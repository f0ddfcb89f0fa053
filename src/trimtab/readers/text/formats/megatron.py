"""Megatron-LM, Megatron-Bridge, Megatron-DeepSpeed: one line a log interval, fields between bars.

     iteration     100/  5000 | consumed samples: 51200 | ... | lm loss: 9.312345E+00 | ... |

What it prints is not always what happened (training_log() of Megatron-LM main and of
Megatron-Bridge 0.3.1):

- The loss is the mean over the interval, of the iterations that were not skipped.
- A mean that is NaN is not printed at all, while `number of nan iterations` stays 0: that counts
  only among skipped iterations.
- Where all iterations were skipped, Megatron-LM prints a loss of 0, Megatron-Bridge none.
"""

import re

import numpy as np

from trimtab.core.block import Column
from trimtab.core.signals import EVAL_LOSS, Quality
from trimtab.readers.aliases import Alias
from trimtab.readers.table import Table
from trimtab.readers.text.grammar import Grammar, Line
from trimtab.readers.text.layouts import Pairs
from trimtab.readers.text.loss_scaling import unscale
from trimtab.readers.text.parser import text_format
from trimtab.readers.text.windows import mark_quality, mark_window_means, window_lengths

LM_LOSS = "lm loss"
SKIPPED = "number of skipped iterations"
NAN = "number of nan iterations"

_fields = Pairs(r" ([^|:]{1,99}): +", r"[^| ]++", r" +\|")


def finish(table: Table) -> None:
    """Mark window means, and restore losses that were not printed."""
    for unit in ("ms", "s"):
        mark_window_means(table, LM_LOSS, f"elapsed time per iteration ({unit})")
    _restore_losses(table)
    unscale(table, norm="grad norm", scale="loss scale")


def _restore_losses(table: Table) -> None:
    losses = [name for name in table.recorded if name.endswith("loss")]
    if losses and LM_LOSS not in losses:
        return  # a different task, with different names for its losses
    rows = np.flatnonzero(table.column(SKIPPED).present)
    skipped, nan = table.column(SKIPPED).values[rows], table.column(NAN).values[rows]
    idle = skipped >= window_lengths(table, SKIPPED)
    column = table.column(LM_LOSS)
    values, present = column.values.copy(), column.present.copy()
    unprinted = ~present[rows] | (idle & (values[rows] == 0))
    values[rows[unprinted]] = np.nan
    # An iteration may have been skipped for its gradient alone; then nothing is known of its loss.
    dropped = unprinted & (~idle | (nan > 0))
    present[rows] = dropped | ~unprinted
    table.replace(LM_LOSS, Column(values, present))
    if dropped.any():
        mark_quality(table, LM_LOSS, Quality.INFERRED)
        table.add_note(
            f"Records in which {LM_LOSS!r} was not printed, as Megatron does with NaN; treated as "
            f"NaN: {np.count_nonzero(dropped)}."
        )
    idle_ones = np.count_nonzero(unprinted & ~dropped)
    if idle_ones:
        table.add_note(
            f"Records in which all iterations were skipped, without a loss: {idle_ones}."
        )


MEGATRON = text_format(
    Grammar(
        name="megatron",
        trainer="Megatron-LM",
        sign=re.compile(r" iteration +\d+/ *\d+ \| +(?:consumed samples|elapsed time)"),
        lines=(
            Line(
                mark=" iteration ",
                pattern=re.compile(r" iteration +(?P<step>\d+)/ *\d+ \|"),
                fields=_fields,
            ),
            Line(
                mark="validation loss at iteration",
                pattern=re.compile(
                    r"validation loss at iteration +(?P<step>\d+)(?: on \w+ set)? \|"
                ),
                fields=_fields,
                prefix="validation ",
            ),
        ),
        meanings=(Alias(signal=EVAL_LOSS, name="validation lm loss value"),),
        finish=finish,
    )
)
"""The format."""
