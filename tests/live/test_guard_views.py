"""A guard in a REPL."""

from pathlib import Path
from typing import Any

import pytest
from tests.kit.tiny import adamw, batches, loss_of, make_model
from tests.kit.user_loop import take_step
from torch.utils._python_dispatch import TorchDispatchMode

import trimtab
from trimtab.live.guard import Guard


class NoOperation(TorchDispatchMode):
    """Lets no operation of torch happen."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(func)


def watched(folder: Path, mode: str = "observe") -> Guard:
    """A guard that has seen three steps."""
    model = make_model()
    (optimizer,) = adamw(fused=True)(model)
    guard = trimtab.watch(model, optimizer, run_dir=folder, mode=mode)
    assert isinstance(guard, Guard)
    for batch in batches(3):
        take_step(guard, optimizer, loss_of(model, batch))
    return guard


def test_a_guard_says_what_it_watches_without_an_operation_of_torch(tmp_path: Path) -> None:
    guard = watched(tmp_path / "run", "protect")
    with NoOperation():  # type: ignore[no-untyped-call]
        text = repr(guard)
    assert text.startswith("<Guard protects AdamW (")
    assert "1 rank): step 3 is next; " in text
    assert text.endswith(f"{tmp_path / 'run' / 'trimtab'}>")
    guard.close()
    assert ": closed; 3 steps recorded, not judged yet; " in repr(guard)


def test_a_view_that_fails_raises_nothing_and_leaves_the_guard_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watched(tmp_path) as guard:
        with monkeypatch.context() as broken:
            broken.setattr(type(guard._monitor.recorder), "summary", lambda self: 1 / 0)
            assert repr(guard).startswith("<trimtab.live.guard.Guard object at ")
        assert guard._monitor.is_watching
        assert "FAILED: views of the guard" in repr(guard)


def test_no_guard_says_so(tmp_path: Path) -> None:
    model = make_model()
    (optimizer,) = adamw(fused=True)(model)
    guard = trimtab.watch(model, optimizer, run_dir=tmp_path, enabled=False)
    assert repr(guard) == "<NoGuard: this run is not watched>"
