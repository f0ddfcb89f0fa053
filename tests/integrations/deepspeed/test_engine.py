"""Engines of DeepSpeed, on 1 and 2 ranks: observed bit for bit, and protected; the example."""

import runpy
from pathlib import Path

import pytest
from tests.kit.deepspeed_engines import (
    HUGE,
    NAN,
    Run,
    all_modes,
    batches,
    loss_of,
    make_engine,
    prepare,
    train,
)
from tests.kit.launch import run_ranks
from tests.kit.tiny import journal_of

import trimtab
from trimtab.live.arithmetic import device_path

STAGES, TYPES = (0, 1, 2, 3), ("fp32", "bf16", "fp16")
IN_CI = {(2, "bf16", 2), (3, "bf16", 2), (0, "fp32", 1)}
"""Stage, precision and ranks; the others are as likely to pass, and are run with `--all`."""

SETTINGS = [
    pytest.param(stage, dtype, ranks, marks=() if key in IN_CI else pytest.mark.slow)
    for ranks in (1, 2)
    for stage in STAGES
    for dtype in TYPES
    for key in [(stage, dtype, ranks)]
]


@pytest.mark.parametrize(("stage", "dtype", "ranks"), SETTINGS)
def test_observing_keeps_the_bits_and_protecting_the_state(
    stage: int, dtype: str, ranks: int, tmp_path: Path
) -> None:
    has_own_skip = (stage, dtype) != (0, "fp32")
    for found in run_ranks(all_modes, ranks, tmp_path, stage, dtype, deadline=120):
        bare, seen, safe = found["None"], found["observe"], found["protect"]
        assert bare.state == seen.state
        assert bare.skipped == seen.skipped
        if not has_own_skip:  # watched as outside of an engine: the schedule goes on
            before, after = safe.around[NAN]
            assert before["lr"] != after["lr"]
            assert {**before, "lr": 0} == {**after, "lr": 0}
            continue
        assert safe.later_moves
        assert safe.applied == {NAN: False, HUGE: False}
        assert safe.skipped == bare.skipped + bare.applied[HUGE]
        for before, after in safe.around.values():
            assert before == after  # with the learning rate: the schedule waits
    if has_own_skip:
        journal = journal_of(tmp_path / "protect")
        assert [event.step for event in journal.events if event.kind == "step discarded"][
            -1
        ] == HUGE
        seen_journal = journal_of(tmp_path / "observe")
        why = [e.facts["why"] for e in seen_journal.events if e.kind == "step not applied"]
        assert why == ["skipped by DeepSpeed"]


def protected_twice(rank: int, folder: Path) -> list[Run]:
    with device_path():
        on_device = train(rank, "protect", folder / "device", 2, "bf16")
    return [on_device, train(rank, "protect", folder / "host", 2, "bf16")]


@pytest.mark.slow
def test_the_path_of_a_device_decides_the_same(tmp_path: Path) -> None:
    for on_device, on_host in run_ranks(protected_twice, 2, tmp_path, deadline=120):
        assert on_device.applied == on_host.applied == {NAN: False, HUGE: False}
        assert on_device.state == on_host.state


MEASURED = ("param_norm", "grad_norm", "adam_", "update", "layer_", "lr", "activation_rms")


def observe(rank: int, folder: Path, stage: int, dtype: str) -> None:
    engine = make_engine(stage, dtype, gradient_clipping=0.0)
    config = trimtab.Config().override({"live.telemetry_every": 5})
    with trimtab.watch(engine, run_dir=folder, observer=False, config=config):
        for batch in batches(22, dtype, rank, {}):
            engine.backward(loss_of(engine, batch))
            engine.step()


@pytest.mark.parametrize(
    ("stage", "ranks", "dtype"),
    [
        (3, 2, "fp16"),
        pytest.param(2, 2, "fp32", marks=pytest.mark.slow),
        pytest.param(1, 2, "fp32", marks=pytest.mark.slow),
        pytest.param(3, 1, "fp32", marks=pytest.mark.slow),
        pytest.param(1, 2, "bf16", marks=pytest.mark.slow),
    ],
)
def test_what_is_measured_of_the_pieces_is_what_it_is_of_a_whole_optimizer(
    stage: int, ranks: int, dtype: str, tmp_path: Path
) -> None:
    run_ranks(observe, ranks, tmp_path / "whole", 0, "fp32")
    run_ranks(observe, ranks, tmp_path / "pieces", stage, dtype)
    whole, pieces = journal_of(tmp_path / "whole"), journal_of(tmp_path / "pieces")
    names = {name for name in whole.columns if name.startswith(MEASURED)}
    assert {"grad_norm/layer.0", "adam_m_norm/head", "layer_update_ratio/0", "lr"} <= names
    assert names <= pieces.columns.keys()
    tolerance = 1e-5 if dtype == "fp32" else 0.02
    for name in names:
        measured, expected = pieces.column(name), whole.column(name)
        assert measured.present.sum() == expected.present.sum() >= 4
        assert measured.values[5::5] == pytest.approx(expected.values[5::5], rel=tolerance), name


EXAMPLE = Path(__file__).parents[3] / "examples" / "deepspeed_engine.py"


def run_the_example(rank: int, folder: Path) -> None:
    import os

    prepare()
    os.chdir(folder)
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_every_step_is_recorded(tmp_path: Path) -> None:
    run_ranks(run_the_example, 1, tmp_path, deadline=120)
    losses = journal_of(tmp_path / "runs" / "deepspeed").column("loss")
    assert len(losses.values) == 40
    assert losses.finite.all()
