"""Routers: how many tokens the busiest expert gets, and which get none."""

import torch
from tests.kit.mixtures import NUM_EXPERTS, WIDTH, Mixture, Model

from trimtab.core.block import Record
from trimtab.core.findings import Symptom
from trimtab.detect.state.experts import Experts
from trimtab.live.measure.experts import ExpertLoad
from trimtab.live.measure.sites import find_sites


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
    sites = [site.name for site in find_sites(Model()) if site.kind == "router"]
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
