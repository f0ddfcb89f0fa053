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
