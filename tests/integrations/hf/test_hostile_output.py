"""A Trainer whose output_dir is the repository of a stranger touches nothing outside of it."""

import contextlib
from pathlib import Path

import pytest
from tests.kit.cases import some_of
from tests.kit.hf import make_trainer
from tests.kit.hostile import CASES, NEWEST, holders, make_place, snapshot

from trimtab.core.errors import TrimtabError
from trimtab.integrations.hf import TrimtabCallback, last_good_checkpoint


@pytest.mark.parametrize(
    "name",
    some_of(
        [
            "checkpoints.json: an absolute folder",
            "link trimtab to a folder",
            f"link {NEWEST} to a folder",
        ],
        "link trimtab to a folder",
        f"link {NEWEST} to a folder",
    ),
)
def test_the_repository_of_a_stranger_leads_nowhere(name: str, tmp_path: Path) -> None:
    place = make_place(tmp_path)
    CASES[name](place)
    before = snapshot(place.outside)
    trainer = make_trainer(place.run, TrimtabCallback(), max_steps=4, save_steps=2)
    with contextlib.suppress(TrimtabError):  # before anything is trained
        trainer.train()
    with contextlib.suppress(TrimtabError):
        found = last_good_checkpoint(place.run)
        assert found is None or Path(found).resolve().is_relative_to(place.run.resolve())
    assert snapshot(place.outside) == before
    assert holders(place) == []
