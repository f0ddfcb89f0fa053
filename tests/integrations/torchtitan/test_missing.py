"""Without torchtitan the module says what to install; the example has a flag that is right."""

import importlib
import importlib.util
import json
import runpy
from pathlib import Path

import pytest

import trimtab
from trimtab.core.config import Config
from trimtab.core.errors import MissingExtra

EXAMPLE = Path(__file__).parents[3] / "examples" / "torchtitan_flag.py"


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is not None, reason="it is installed")
def test_the_message_names_the_command() -> None:
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[torchtitan\]"'):
        importlib.import_module("trimtab.integrations.torchtitan")


def test_the_example_gives_torchtitan_a_flag_that_it_can_read() -> None:
    example = runpy.run_path(str(EXAMPLE))
    target, _, options = example["COMMAND"][-1].partition("=")
    source = Path(trimtab.__file__).parent / "integrations" / "torchtitan.py"
    assert target == "trimtab.integrations.torchtitan.watched"
    assert "def watched(" in source.read_text(encoding="utf-8")
    assert json.loads(options) == example["TRIMTAB"]
    Config().override(example["TRIMTAB"]["settings"])
