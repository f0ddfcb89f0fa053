"""A compiled optimizer step: Dynamo does not trace into the guard."""

from pathlib import Path

import pytest
import torch
import torch._dynamo
from tests.kit.tiny import batches, loss_of, make_model
from tests.kit.user_loop import is_finite, losses, poison
from torch._dynamo.utils import counters

import trimtab


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["observe", "protect"])
def test_a_compiled_step_is_not_compiled_again_for_the_guard(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    counters.clear()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode=mode) as guard:
        update = torch.compile(optimizer.step, backend="eager")
        for step, batch in enumerate(batches(16)):
            loss = loss_of(model, batch)
            guard.record(loss=loss)
            optimizer.zero_grad()
            loss.backward()
            if mode == "protect" and step == 10:
                poison(model)
            update()
    assert is_finite(model)
    assert len(losses(tmp_path)) == 16
    frames = counters["frames"]["total"]
    complaints = [
        record.getMessage()
        for record in caplog.records
        if "torch._dynamo" in record.name and "recompile_limit" in record.getMessage()
    ]
    assert not complaints, complaints[0]
    assert frames < 20


@pytest.mark.filterwarnings("ignore")
def test_a_record_in_a_compiled_step_breaks_no_graph_of_the_loop(tmp_path: Path) -> None:
    """Those breaks are there without a guard, too: backward and optimizer; one is in a frame of
    ours, which asks whether it is compiled."""

    def count_breaks(folder: Path | None) -> int:
        torch._dynamo.reset()
        counters.clear()
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        with trimtab.watch(
            model, optimizer, run_dir=folder or "unused", enabled=folder is not None
        ) as guard:

            @torch.compile(backend="eager")
            def take_step(batch: torch.Tensor) -> None:
                loss = model(batch).square().mean()
                if folder is not None:
                    guard.record(loss=loss)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

            for _ in range(3):
                take_step(torch.ones(2, 4))
        return sum(counters["graph_break"].values())

    assert count_breaks(tmp_path) <= count_breaks(None) + 1
