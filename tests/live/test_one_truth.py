"""Whatever happens in training, every output of the run shows one class, onset and instruction."""

import math
from pathlib import Path

import pytest
import torch
from tests.kit.observing import with_observer  # noqa: F401
from tests.kit.user_loop import take_step
from tests.observe.test_one_truth import said_wrongly

import trimtab
from trimtab.core.incidents import Incident
from trimtab.journal import RunDirectory

pytestmark = pytest.mark.usefixtures("with_observer")


@pytest.mark.parametrize("factor", [30.0, math.nan])
def test_every_output_of_training_says_the_same(factor: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    heard: dict[int, Incident] = {}
    checkpoints = trimtab.Checkpoints(model, optimizer, run_dir=tmp_path)
    with trimtab.watch(
        model,
        optimizer,
        run_dir=tmp_path,
        checkpoints=checkpoints,
        on_incident=lambda incident: heard.update({incident.number: incident}),
    ) as guard:
        for step in range(300):
            batch = torch.randn(32, 8)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            take_step(guard, optimizer, loss * (factor if step >= 200 else 1.0))
            if step == 150:
                guard.checkpoint()
    assert heard
    assert said_wrongly(RunDirectory(tmp_path), heard, []) == []
    assert {one.checkpoint for one in trimtab.diagnose(tmp_path).incidents} == {"step-00000151"}
