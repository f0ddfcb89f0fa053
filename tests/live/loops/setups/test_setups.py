"""Every set-up: `observe` changes no bit; `protect` keeps a NaN batch out or says it cannot.

A healthy run in `recover` has the bits of the same run in `protect`.
"""

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.kit.launch import log_of_trimtab, run_ranks
from tests.live.loops.setups.loops import loop_setups
from tests.live.loops.setups.optimizers import optimizer_setups, swept
from tests.live.loops.setups.parallel import parallel_setups
from tests.live.loops.setups.trainers import trainer_setups
from tests.live.loops.setups.trial import BAD, Learned, SetUp

import trimtab
from trimtab.core.config import Config
from trimtab.core.errors import TrimtabError

SETUPS = {
    setup.name: setup
    for setups in (optimizer_setups, loop_setups, trainer_setups, parallel_setups, swept)
    for setup in setups()
}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def watching(mode: str, run_dir: Path) -> Callable[..., Any]:
    """`watch` with everything given but the model and the optimizer."""
    config = Config.from_dict({"gate": {"promote": False}})

    def watch(model: Any, optimizer: Any, **options: Any) -> Any:
        return trimtab.watch(
            model,
            optimizer,
            run_dir=run_dir,
            mode=mode or "observe",
            enabled=bool(mode),
            config=config,
            **options,
        )

    return watch


def healthy(step: int) -> float:
    return 1.0


def without(step: int) -> float | None:
    return None if step == BAD else 1.0


def trials(rank: int, name: str, folder: Path) -> dict[str, Any]:
    """All runs of a set-up on this rank."""
    train = SETUPS[name].train
    heard: list[str] = []
    try:
        outcome: dict[str, Any] = {"bare": train(watching("", folder), healthy)}
    except Exception as error:
        return {"unusable": f"{type(error).__name__}: {error}"}
    outcome["again"] = train(watching("", folder), healthy)
    try:
        outcome["observe"] = train(watching("observe", folder / "observe"), healthy)
    except TrimtabError as refusal:
        return {**outcome, "refusal": str(refusal)}
    for mode in ("protect", "recover"):
        with contextlib.suppress(TrimtabError):
            outcome[f"healthy {mode}"] = train(watching(mode, folder / f"healthy {mode}"), healthy)
    outcome["without"] = train(watching("", folder), without)
    with log_of_trimtab() as said:

        def spoil(step: int) -> float:
            if step == BAD:
                heard.extend(said)
            return float("nan") if step == BAD else 1.0

        try:
            outcome["protect"] = train(watching("protect", folder / "protect"), spoil)
        except TrimtabError as refusal:
            heard.append(str(refusal))
    return {**outcome, "heard": heard}


@pytest.mark.parametrize("name", SETUPS)
def test_a_set_up_is_watched_without_a_trace_and_protected(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    setup = SETUPS[name]
    record_property("setup", name)
    record_property("group", setup.group)
    package = setup.package.partition(".")[0]
    if package and package not in sys.modules and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    ends = run(setup, tmp_path)
    for end in ends:
        if "unusable" in end:
            pytest.skip(f"the bare run fails: {end['unusable'][:200]}")
        if end["bare"] != end["again"]:
            pytest.skip("the bare run is not reproducible")
        if not end["bare"].is_finite:
            pytest.skip("the bare run is not finite")
    refusals = [end["refusal"] for end in ends if "refusal" in end]
    if refusals:
        record_property("observe", f"refused: {refusals[0]}")
        return
    assert all(end["observe"] == end["bare"] for end in ends), "observe changed bits"
    record_property("observe", "same bits")
    if all("healthy recover" in end for end in ends):
        same = all(end["healthy recover"] == end["healthy protect"] for end in ends)
        assert same, "recover changed bits"
        record_property("recover", "same bits as protect")
    record_property("protect", protection(ends))


def run(setup: SetUp, folder: Path) -> list[dict[str, Any]]:
    if setup.ranks > 1:
        return run_ranks(trials, setup.ranks, setup.name, folder, deadline=120.0)
    return [trials(0, setup.name, folder)]


def protection(ends: list[dict[str, Any]]) -> str:
    """What `protect` did about the bad step; fails if it let it in without a word."""
    outcomes: list[Learned | None] = [end.get("protect") for end in ends]
    sentences = [
        sentence
        for end in ends
        for sentence in end["heard"]
        if re.search("discard|protect", sentence)
        and not sentence.startswith("trimtab failed")  # a bug of ours is no refusal
    ]
    if all(outcome == end["without"] for outcome, end in zip(outcomes, ends, strict=True)):
        return "no trace of the bad step"
    if all(outcome is not None and outcome.is_finite for outcome in outcomes):
        return "NaN kept out"
    assert sentences, "NaN got in"
    return f"refused: {sentences[0]}"
