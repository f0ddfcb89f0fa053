"""A data source that is new to the run is noticed once."""

from typing import Any, cast

from trimtab.live.recover.decide.new_sources import LEARNT_BOUNDARIES, NewSources
from trimtab.live.recover.decide.run_view import RunView


def view_at(position: int, sources: dict[int, str]) -> RunView:
    return RunView(
        step=position,
        accumulate=1,
        next_position=position,
        slots=(0,),
        settings=cast(Any, None),
        settings_at=cast(Any, None),
        rate_ratio=lambda: None,
        world=1,
        source_at=lambda at: sources.get(at, "web"),
        can_probe=True,
    )


def test_a_source_is_new_once_and_not_at_the_start_or_after_a_rollback() -> None:
    late = LEARNT_BOUNDARIES + 20
    sources = {5: "books", late: "garbage", late + 3: "garbage", late + 9: "code"}
    new = NewSources()
    found = {at: new.look(view_at(at, sources)) for at in range(1, late + 20)}
    assert {at: name for at, name in found.items() if name is not None} == {
        late + 1: "garbage",
        late + 10: "code",
    }
    assert all(new.look(view_at(at, sources)) is None for at in range(late - 5, late + 20))
