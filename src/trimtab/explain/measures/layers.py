"""Norms by layer around an incident: where in the model it shows."""

from dataclasses import dataclass

import numpy as np

from trimtab.core.signals import ACTIVATION_RMS, GRAD_NORM_OF
from trimtab.explain.context import IncidentContext

NEAR_RECORDS = 20
"""Telemetry is recorded every 10 steps by default: within twice that, there must be one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNorms:
    """One layer's signal: the last value before the onset and the first from it on."""

    signal: str
    before: float | None
    after: float | None


def layer_norms(context: IncidentContext) -> tuple[LayerNorms, ...]:
    """What was recorded by layer around the onset; None where no record was near."""
    names = [n for n in context.block.columns if n.startswith((ACTIVATION_RMS, GRAD_NORM_OF))]
    row = context.onset_row
    found = []
    for name in sorted(names, key=_natural):
        column = context.block.column(name)
        early = np.flatnonzero(column.present[max(row - NEAR_RECORDS, 0) : row])
        late = np.flatnonzero(column.present[row : row + NEAR_RECORDS])
        before = column.values[max(row - NEAR_RECORDS, 0) + early[-1]] if len(early) else None
        after = column.values[row + late[0]] if len(late) else None
        if before is not None or after is not None:
            found.append(
                LayerNorms(
                    signal=name,
                    before=None if before is None else float(before),
                    after=None if after is None else float(after),
                )
            )
    return tuple(found)


def _natural(name: str) -> tuple[list[int], str]:
    """An order in which layer 10 comes after layer 9."""
    return [int(part) for part in name.replace("/", ".").split(".") if part.isdigit()], name
