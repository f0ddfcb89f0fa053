"""What a discarded batch touched besides the weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.user_loop import NAN, is_finite, take_step, warnings_of, watching
from torch import nn

from trimtab.core.errors import TrimtabError


def train(run_dir: Path, *, bad: set[int], skip: set[int], enabled: bool) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)
    model = nn.Sequential(*layers)
    data = torch.randn(20, 8, 4, generator=torch.Generator().manual_seed(1))
    with watching(run_dir, "protect", model=model, enabled=enabled) as run:
        for step, batch in enumerate(data):
            if step not in skip:
                loss = model(batch * (NAN if step in bad else 1.0)).square().mean()
                take_step(run.guard, run.optimizer, loss)
    return model


def test_running_statistics_of_a_discarded_batch_come_back(tmp_path: Path) -> None:
    model = train(tmp_path, bad={9, 10}, skip=set(), enabled=True)
    assert is_finite(model)
    assert torch.isfinite(model.eval()(torch.randn(2, 4))).all()
    bare = train(tmp_path, bad=set(), skip={9, 10}, enabled=False)
    for name, value in bare.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, msg=name)


def test_a_run_that_is_broken_for_good_ends_with_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    recurrent, head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 1)
    model = nn.ModuleList([recurrent, head])
    steps: list[int] = []

    def run_on() -> None:
        carried: Any = None
        with watching(tmp_path, "protect", model=model) as run:
            for step in range(200):
                steps.append(step)
                batch = torch.randn(4, 5, 4) * (NAN if step == 20 else 1.0)
                output, carried = recurrent(batch, carried)
                carried = tuple(part.detach() for part in carried)
                take_step(run.guard, run.optimizer, head(output).square().mean())

    with pytest.raises(TrimtabError, match="finite"):
        run_on()
    assert 110 <= steps[-1] <= 130  # the limit is 100 in a row, seen with the lag
    assert is_finite(model)
    assert warnings_of(caplog)
