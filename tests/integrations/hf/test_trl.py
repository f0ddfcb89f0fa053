"""The callback in TRL's SFTTrainer, whose loss no forward hook could see."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tests.integrations.hf.test_callback import logged
from tests.kit.hf import bits, make_sft
from tests.kit.tiny import journal_of

from trimtab.integrations.hf import TrimtabCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.slow,  # importing TRL takes longer than the tests
]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"loss_type": "dft"},
        {"label_smoothing_factor": 0.1},
        {"gradient_accumulation_steps": 4, "packing": True},
        {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    ],
)
def test_sft_has_the_same_bits_and_the_true_loss(arguments: dict[str, Any], tmp_path: Path) -> None:
    def train(name: str, callback: Any) -> Any:
        transformers.set_seed(0)
        trainer = make_sft(tmp_path / name, callback, **arguments)
        trainer.train()
        return trainer

    plain = train("plain", None)
    watched = train("watched", TrimtabCallback())
    assert bits(watched) == bits(plain)
    loss = journal_of(tmp_path / "watched").column("loss").values
    np.testing.assert_allclose(loss, logged(plain, "loss"), rtol=1e-4)

    recovering = train("recovering", TrimtabCallback(mode="recover"))
    assert bits(recovering) == bits(plain)  # its optimizer is fused without trimtab too
    for name in ("loss", "num_tokens", "entropy"):
        assert logged(recovering, name) == logged(plain, name)
