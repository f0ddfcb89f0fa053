"""Routers: how many tokens the busiest expert gets, and which get none."""

from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.core.block import Record
from trimtab.core.findings import Symptom
from trimtab.detect.state.hard_limits import Experts
from trimtab.live.measure.experts import ExpertLoad
from trimtab.live.measure.sites import find_sites
from trimtab.readers.aliases import alias_table
from trimtab.readers.reading import read_log

WIDTH, NUM_EXPERTS = 16, 8


class Mixture(nn.Module):
    """Two of eight experts for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(WIDTH, NUM_EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_EXPERTS))


def three_layers() -> nn.Module:
    layers = nn.ModuleList(nn.ModuleDict({"moe": Mixture()}) for _ in range(3))
    embed, head = nn.Embedding(32, WIDTH), nn.Linear(WIDTH, 32)
    return nn.ModuleDict({"embed": embed, "layers": layers, "head": head})


def load_of(bias: torch.Tensor, times: int = 20) -> list[float | None]:
    torch.manual_seed(0)
    mixture = Mixture()
    with torch.no_grad():
        mixture.gate.bias.add_(bias)
    load = ExpertLoad(mixture.gate, mixture, torch.device("cpu"))
    for _ in range(times):
        found = load.measure(mixture.gate(torch.randn(128, WIDTH)))
    assert found is not None
    return [None if value is None else float(value) for value in found]


def test_routers_are_found_and_their_experts_counted() -> None:
    sites = [site.name for site in find_sites(three_layers()) if site.kind == "router"]
    assert sites == [f"layers.{n}.moe.gate" for n in range(3)]
    even = load_of(torch.zeros(NUM_EXPERTS))
    assert even[1] == 0.0
    assert even[0] is not None
    assert 0.25 <= even[0] < 0.6
    one = torch.zeros(NUM_EXPERTS)
    one[2] = 50.0
    assert load_of(one)[0] == 1.0
    assert load_of(-one)[1] == 1 / NUM_EXPERTS
    mixture = Mixture()
    load = ExpertLoad(mixture.gate, mixture, torch.device("cpu"))
    found = load.measure(mixture.gate(torch.randn(8, WIDTH)))
    assert found is not None
    assert found[1] is None  # eight tokens say nothing of the death of an expert


def test_routers_that_return_what_they_chose_are_counted() -> None:
    """As those of torchtitan (scores, ids, map) and of Megatron (probabilities, map)."""
    router, parent = nn.Module(), nn.Module()
    router.top_k, router.num_experts = 2, NUM_EXPERTS  # type: ignore[assignment]
    ids = torch.arange(256).reshape(128, 2) % (NUM_EXPERTS - 2)
    chosen = torch.zeros(128, NUM_EXPERTS, dtype=torch.bool).scatter_(1, ids, True)
    for output in ((torch.rand(128, 2), ids, chosen), (0.5 * chosen.float(), chosen)):
        load = ExpertLoad(router, parent, torch.device("cpu"))
        found = load.measure(output)
        assert found is not None
        assert found[0] is not None
        assert pytest.approx(float(found[0]), rel=0.05) == 2 / (NUM_EXPERTS - 2)
        assert found[1] == 2 / NUM_EXPERTS
        assert found[2:] == [None, None]


MEGATRON = (
    " iteration {:8d}/ 300000 | consumed samples: {:12d} | elapsed time per iteration (ms): 3738 |"
    " learning rate: 6.000000E-05 | global batch size:    32 | lm loss: 7.968678E+00 |"
    " load_balancing_loss: {:.6E} | loss scale: 1.0 | grad norm: 1.040 | number of skipped"
    " iterations:   0 | number of nan iterations:   0 |\n"
)


def test_a_balancing_loss_that_grows_in_a_log_is_drift(tmp_path: Path) -> None:
    for last, expected in ((1.2, set()), (3.0, {Symptom.EXPERT_DRIFT})):
        path = tmp_path / "train.log"
        values = [1.1] * 30 + [last] * 10
        path.write_text("".join(MEGATRON.format(i, 32 * i, v) for i, v in enumerate(values, 1)))
        block = read_log(path).block
        detector = Experts()
        found = [f for record in block.records() for f in detector.update(record)]
        assert {finding.symptom for finding in found} == expected
    titan, layer = "micro_batch_wise_load_balance_loss/mean", "moe/load_balancing_loss_layer_3"
    assert alias_table().claim(titan).alias.signal == "balancing_loss"
    assert alias_table().claim(layer).alias.signal == "balancing_loss/3"


def test_collapse_death_and_drift_are_reported_once_a_router() -> None:
    detector = Experts()
    found = []
    for step in range(40):
        share = 0.2 + 0.02 * step
        signals = {"expert_max_share/a": share, "dead_experts/a": 0.125 if step > 9 else 0.0}
        found += detector.update(Record(step=step, tick=step, signals=signals))
    assert [(str(one.symptom), one.step) for one in found] == [
        (str(Symptom.DEAD_EXPERTS), 12),
        (str(Symptom.EXPERT_DRIFT), 27),
        (str(Symptom.EXPERT_COLLAPSE), 37),
    ]
