"""A data source that does harm is left out, in this process and after a relaunch."""

import json
from pathlib import Path
from typing import Any

import torch
from tests.kit.tiny import batches, loss_of, make_model
from torch import optim

import trimtab
from trimtab.core.config import Config
from trimtab.decide.ladder import read_decisions, recompute
from trimtab.decide.situation import Act
from trimtab.journal import RunDirectory
from trimtab.live.guard import Guard
from trimtab.live.recover.quarantine import read_quarantine

FIRST_BAD, STEPS = 120, 200


def mixed() -> list[dict[str, Any]]:
    """From a position on, every third batch is of a bad source."""
    found = batches(STEPS + 150, size=16)
    return [
        {"tokens": tokens, "source": "bad" if n >= FIRST_BAD and n % 3 == 0 else "web"}
        for n, tokens in enumerate(found)
    ]


def train(folder: Path, data: list[dict[str, Any]], first: int = 0) -> tuple[list[int], Guard]:
    """A loop whose weights suffer from every batch of the bad source."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    used: list[int] = []
    with trimtab.watch(
        model,
        optimizer,
        run_dir=folder,
        mode="recover",
        config=Config().override({"ladder.max_rollbacks": 6}),
        batch_loss=lambda batch: loss_of(model, batch["tokens"]),
        facts={"step": first},
    ) as guard:
        assert isinstance(guard, Guard)
        for step in guard.steps(data, data_position=first):
            if step.number == STEPS:
                break
            for batch in step:
                loss = loss_of(model, batch["tokens"])
                guard.record(loss=loss)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            used.append(step.data_position)
            if batch["source"] == "bad":
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(torch.randn_like(parameter), alpha=0.07)
    return used, guard


def test_a_source_that_does_harm_is_quarantined(tmp_path: Path) -> None:
    data = mixed()
    used, _ = train(tmp_path, data)
    run = RunDirectory(tmp_path)
    acts = [act for _, act in read_decisions(run.decisions)]
    assert acts.count(Act.QUARANTINE) == 1, acts
    assert recompute(run.decisions)[1] == []
    assert "bad" in read_quarantine(run.quarantine)
    # The last steps are trained on everything but the bad source.
    assert all(data[position]["source"] == "web" for position in used[-40:])
    assert used[-1] > STEPS


def test_a_quarantined_source_stays_out_after_a_relaunch(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.quarantine.parent.mkdir(parents=True)
    run.quarantine.write_text(json.dumps({"source": "bad"}) + "\n", encoding="utf-8")
    data = mixed()
    used, _ = train(tmp_path, data[110:], first=110)
    assert used == [n for n in range(110, len(data)) if data[n]["source"] == "web"][: STEPS - 110]
