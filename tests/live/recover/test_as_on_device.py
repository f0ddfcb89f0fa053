"""Bits that are summed as on an accelerator: flips are undone."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kit.undo import KINDS, Loop, flip_moment, flip_weight, same, train, undos

pytestmark = pytest.mark.usefixtures("device_path")


@pytest.mark.parametrize("harm", [flip_weight, flip_moment])
@pytest.mark.parametrize("name", ["plain", "fused", "two optimizers"])
def test_a_flipped_bit_is_undone(name: str, harm: Callable[[Loop], None], tmp_path: Path) -> None:
    loop = train(KINDS[name], tmp_path, "recover", edits={25: harm})
    (undo,) = undos(tmp_path)
    assert "flipped in memory" in str(undo.facts["why"])
    lost = int(undo.facts["updates_lost"])
    assert same(loop.states[undo.step], loop.states[undo.step - lost - 1])
