"""What a rank saves is read back without unpickling objects."""

import io
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trimtab.state.checkpoints.data_cursor import Mark
from trimtab.state.checkpoints.rank_state import RankState, from_plain, to_plain
from trimtab.state.rng import equal, get_random_state


def saved_and_read(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def state_of(loader: Any) -> RankState:
    random = get_random_state()
    mark = Mark(position=7, epoch=1, start=4, random_at_start=random, loader=loader)
    return RankState(
        mark=mark, position=9, random=random, guard={"x": 1.5}, buffers={"b": torch.ones(2)}
    )


def test_the_state_of_a_rank_comes_back_as_it_was() -> None:
    state = state_of({"yielded": 3, "order": np.arange(4, dtype=np.uint32), "parts": (1, [None])})
    found = RankState.from_plain(saved_and_read(state.to_plain()))
    assert found is not None
    assert found.mark is not None
    assert found.random is not None
    assert state.random is not None
    assert (found.position, found.guard) == (9, {"x": 1.5})
    assert equal(found.random, state.random)
    assert found.mark.loader["parts"] == (1, [None])
    assert found.mark.loader["order"].dtype == np.uint32
    assert torch.equal(found.buffers["b"], torch.ones(2))


def test_a_loader_with_an_object_in_its_state_is_left_out_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = RankState.from_plain(saved_and_read(state_of({"path": Path("x")}).to_plain()))
    assert found is not None
    assert found.mark is not None
    assert found.mark.loader is None
    assert "the state of the loader is not saved" in caplog.text


class Harmful:
    def __reduce__(self) -> Any:
        raise AssertionError("never reached: objects are refused before they are saved")


def test_objects_are_refused_both_ways() -> None:
    with pytest.raises(TypeError, match="Harmful"):
        to_plain([Harmful()])
    with pytest.raises(pickle.UnpicklingError):
        saved_and_read({"path": Path("x")})


@pytest.mark.parametrize("value", [None, 3, [], {}, {"mark": 1, "random": 2}])
def test_a_file_of_something_else_is_no_state(value: Any) -> None:
    assert RankState.from_plain(value) is None


def test_plain_values_stay_as_they_are() -> None:
    value = {"a": [1, 2.5, "x", b"y", None, True], 3: (4,)}
    assert from_plain(to_plain(value)) == value
