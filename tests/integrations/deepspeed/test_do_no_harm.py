"""Whatever happens to the guard of an engine, the engine trains as if there were none."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from tests.kit.deepspeed_engines import batches, loss_of, make_engine, prepare, state_of
from tests.kit.launch import log_of_trimtab, run_ranks
from tests.kit.tiny import journal_of

import trimtab
from trimtab.core.errors import ConfigError
from trimtab.live.deepspeed.engine import Engine
from trimtab.live.deepspeed.engine_gate import EngineGate, SkipRule
from trimtab.live.deepspeed.pieces import EnginePieces
from trimtab.live.deepspeed.seam import NAME, Seam
from trimtab.live.deepspeed.step_hooks import EngineHooks, EngineLosses

STEPS = 12
NAN = 5

Loop = Callable[[Any, list[Any]], None]


def plain_loop(engine: Any, data: list[Any]) -> None:
    for batch in data:
        engine.backward(loss_of(engine, batch))
        engine.step()


def trained(
    rank: int, folder: Path | None, *, loop: Loop = plain_loop, stage: int = 2, close: bool = True
) -> Any:
    """Return the state after a run with one NaN batch, protected if there is a folder."""
    engine = make_engine(stage, "bf16")
    guard = folder and trimtab.watch(engine, run_dir=folder, mode="protect", observer=False)
    loop(engine, batches(STEPS, "bf16", rank, {NAN: "nan"}))
    if guard and close:
        guard.close()
        if dist.get_world_size() == 1:  # else others may still wait for this guard
            assert "step" not in vars(engine.optimizer)
            assert "backward" not in vars(engine)
    return state_of(engine)


@contextmanager
def quiet() -> Iterator[None]:
    """Leave the log of failures on purpose out."""
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    yield
    logging.getLogger("trimtab").setLevel(logging.NOTSET)


BROKEN = [
    (Engine, "__init__"),
    (EnginePieces, "__init__"),
    (EngineHooks, "register"),
    (EngineHooks, "_inspect"),
    (EngineHooks, "_end_update"),
    (EngineHooks, "_report_skip"),
    (EngineHooks, "_last_norm"),
    (EngineLosses, "_record"),
    (Engine, "loss_scale"),
    (Engine, "has_skipped"),
    (EnginePieces, "note_gradients"),
    (EnginePieces, "get"),
    (Engine, "has_loss_scale"),
    (EngineGate, "decide"),
    (EngineGate, "is_as_clipped"),
    (EngineGate, "before"),
    (SkipRule, "judge"),
]


def broken_everywhere(rank: int, folder: Path) -> list[str]:
    """Return the functions whose failure has changed the training."""
    prepare()
    bare, harmed = trained(rank, None), []
    for number, (owner, name) in enumerate(BROKEN):

        def fail(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("planted")

        broken = property(fail) if isinstance(vars(owner)[name], property) else fail
        with quiet(), patch.object(owner, name, broken):
            if trained(rank, folder / str(number)) != bare:
                harmed.append(f"{owner.__name__}.{name}")
    return harmed


def test_every_function_of_the_door_may_raise(tmp_path: Path) -> None:
    assert run_ranks(broken_everywhere, 1, tmp_path, deadline=120) == [[]]


def broken_on_one_rank(rank: int, folder: Path, name: str) -> bool:
    bare = trained(rank, None)
    owner = next(owner for owner, broken in BROKEN if broken == name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("planted")

    with quiet(), patch.object(owner, name, fail if rank else vars(owner)[name]):
        return bool(trained(rank, folder) == bare)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["_inspect", pytest.param("judge", marks=SLOW), pytest.param("_record", marks=SLOW)]
)
def test_one_rank_may_fail_alone(name: str, tmp_path: Path) -> None:
    assert run_ranks(broken_on_one_rank, 2, tmp_path, name, deadline=120) == [True, True]


def interrupted(engine: Any, data: list[Any]) -> None:
    """Steps without a backward pass, exceptions in the middle of one, in DeepSpeed and before."""
    inside = engine.optimizer.optimizer

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("an optimizer that raises")

    with suppress(Exception):
        engine.step()
    for number, batch in enumerate(data):
        loss = loss_of(engine, batch)
        if number == 3:
            continue  # the loop leaves a batch out
        engine.backward(loss)
        if number == 8:
            with suppress(ValueError), patch.object(inside, "step", fail):
                engine.step()
            engine.optimizer.zero_grad()
            continue
        engine.step()


def loops_of_all_kinds(rank: int, folder: Path) -> dict[str, bool]:
    found = {}
    for stage in (1, 2, 3):
        bare = trained(rank, None, loop=interrupted, stage=stage)
        safe = trained(rank, folder / str(stage), loop=interrupted, stage=stage)
        found[f"ZeRO {stage}"] = bare == safe
    return found


def test_a_loop_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    assert all(run_ranks(loops_of_all_kinds, 1, tmp_path, deadline=120)[0].values())


def two_engines(rank: int, folder: Path) -> dict[str, Any]:
    """One engine is watched, one is not, two are watched together; all get the NaN batch."""
    bare = trained(rank, None)
    data = batches(STEPS, "bf16", rank, {NAN: "nan"})
    engines = [make_engine(2, "bf16") for _ in range(3)]
    guards = [
        trimtab.watch(engine, run_dir=folder / str(number), observer=False)
        for number, engine in enumerate(engines[:2])
    ]
    scope = vars(sys.modules[type(engines[0].optimizer).__module__])
    was_open = isinstance(scope[NAME], Seam)
    for batch in data:
        for engine in engines:
            engine.backward(loss_of(engine, batch))
            engine.step()
    states = [state_of(engine) == bare for engine in engines]
    engines[0].destroy()
    guards[0].close()
    is_still_open = isinstance(scope[NAME], Seam)
    guards.pop().close()
    del guards
    return {
        "states": states,
        "seam": [was_open, is_still_open, isinstance(scope[NAME], Seam)],
        "steps": [len(journal_of(folder / str(number))) for number in (0, 1)],
    }


def test_engines_do_not_touch_each_other_and_the_seam_is_given_back(tmp_path: Path) -> None:
    (found,) = run_ranks(two_engines, 1, tmp_path, deadline=120)
    assert found == {
        "states": [True, True, True],
        "seam": [True, True, False],
        "steps": [STEPS, STEPS],
    }


def refusals(rank: int, folder: Path) -> list[str]:
    """Return what is said about what cannot be done."""
    said, deepspeed = [], prepare()
    from deepspeed.pipe import PipelineModule

    engine = make_engine(2, "bf16")
    try:
        trimtab.watch(engine, run_dir=folder / "r", mode="recover")
    except ConfigError as error:
        said.append(str(error))
    model = PipelineModule(layers=[torch.nn.Linear(8, 2)], num_stages=1)
    bare = torch.nn.Linear(8, 2)
    for unwatchable in (model, bare):
        made = {"optimizer": torch.optim.SGD(model.parameters())} if unwatchable is model else {}
        config = {"train_micro_batch_size_per_gpu": 4}
        engine, *_ = deepspeed.initialize(model=unwatchable, config=config, **made)
        try:
            trimtab.watch(engine, run_dir=folder / "u")
        except ConfigError as error:
            said.append(str(error))
    options: dict[str, Any]
    for options in (
        {"zero_optimization": {"compute_grad_norm": False}, "gradient_clipping": 0.0},
        {"bf16": {"check_grad_overflow": False}},
    ):
        engine = make_engine(2, "bf16", **options)
        with log_of_trimtab() as logged:
            with trimtab.watch(
                engine, run_dir=folder / next(iter(options)), mode="protect"
            ) as guard:
                assert "observes" in repr(guard)
                plain_loop(engine, batches(3, "bf16", rank, {}))
            said += logged
    return said


def test_what_cannot_be_done_is_said_in_one_sentence(tmp_path: Path) -> None:
    (said,) = run_ranks(refusals, 1, tmp_path, deadline=120)
    assert [sentence.partition(":")[0] for sentence in said] == [
        'mode="recover" cannot restore the sharded state inside a DeepSpeed engine; use '
        'mode="protect", and its checkpoints to go back',
        "a PipelineEngine steps inside train_batch and cannot be watched; `trimtab diagnose` reads "
        "its log",
        "the engine has no optimizer; pass one to deepspeed.initialize, or name it in its "
        "configuration",
        "trimtab",
        "trimtab",
    ]
    assert "compute_grad_norm=false" in said[3]
    assert "check_grad_overflow=false" in said[4]
