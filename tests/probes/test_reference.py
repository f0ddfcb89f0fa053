"""The batches of a step under weights that are known to be good."""

from pathlib import Path

import torch
from tests.probes.loops import answers_of
from torch import nn

import trimtab
from trimtab import Checkpoints
from trimtab.core.config import Config

BAD = 160


def run(folder: Path, *, probes: bool, is_bad: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    dice = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = [torch.randn(4, 8, generator=dice) for _ in range(200)]
    if is_bad:
        data[BAD] = data[BAD] * 30
    points = Checkpoints(model, optimizer, run_dir=folder)
    config = Config().override({"ladder.enabled": False})
    with trimtab.watch(
        model, optimizer, run_dir=folder, mode="recover", checkpoints=points, config=config
    ) as guard:
        for step in guard.steps(data):
            if step.number >= BAD + 8:
                break
            for batch in step:
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                guard.record(loss=loss)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step.is_probe:
                continue
            if step.number in (19, 145):
                guard.checkpoint()
            if probes and step.number == BAD + 3:
                guard.probe("reference", BAD)
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_a_batch_is_odd_under_the_proven_checkpoint_and_the_run_is_unchanged(
    tmp_path: Path,
) -> None:
    probed = run(tmp_path / "probed", probes=True)
    straight = run(tmp_path / "straight", probes=False)
    [answer] = answers_of(tmp_path / "probed")
    assert answer.facts["answer"] == "batch", answer.facts["sentence"]
    assert "the proven checkpoint of step 20" in answer.facts["sentence"]
    assert all(map(torch.equal, probed, straight))


def test_a_usual_batch_is_not_odd_there(tmp_path: Path) -> None:
    run(tmp_path, probes=True, is_bad=False)
    [answer] = answers_of(tmp_path)
    assert answer.facts["answer"] == "state", answer.facts["sentence"]
