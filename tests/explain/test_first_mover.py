"""The layer that moved first is the one whose values left their past and the other layers."""

import numpy as np

from trimtab.core.block import Block, Column
from trimtab.explain.measures import first_movers


def run(moved: int | None) -> Block:
    generator = np.random.default_rng(0)
    found: dict[str, Column] = {}
    for layer in range(6):
        for family, noise in (("layer_param_norm/", 0.001), ("grad_norm/layer.", 0.2)):
            values = np.exp(noise * generator.standard_normal(20))
            values[15:] *= 3.0 if family.startswith("grad") else 1.0  # all gradients grow
            if layer == moved and family.startswith("layer"):
                values[15:] *= 1.5
            found[f"{family}{layer}"] = Column.complete(values)
    return Block.from_columns(found, step=np.arange(20))


def test_the_layer_of_a_fault_is_named_although_all_gradients_grow() -> None:
    moves, chart = first_movers(run(4), 15)
    assert [(move.layer, move.signal, move.step) for move in moves] == [
        ("4", "layer_param_norm/4", 15)
    ]
    assert 1.4 < moves[0].ratio < 1.6
    assert chart is not None
    assert chart.layers == tuple("012345")
    assert first_movers(run(None), 15) == ((), None)
