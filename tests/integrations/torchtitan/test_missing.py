"""Without torchtitan the module says what to install."""

import importlib
import importlib.util

import pytest

from trimtab.core.errors import MissingExtra


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is not None, reason="it is installed")
def test_the_message_names_the_command() -> None:
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[torchtitan\]"'):
        importlib.import_module("trimtab.integrations.torchtitan")
