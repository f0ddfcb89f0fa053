from pathlib import Path

import pytest
from tests.kit.plugins import install_plugin

from trimtab.core.checkpointer import find_checkpointer
from trimtab.core.errors import ConfigError
from trimtab.core.plugins import CHECKPOINTERS

SOURCE = """
class Store:
    def save(self, folder, state): ...
    def load(self, folder, state): ...
"""


def test_a_checkpointer_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, CHECKPOINTERS, "store", SOURCE, "Store")
    assert type(find_checkpointer("store")).__name__ == "Store"
    with pytest.raises(ConfigError, match="there is no checkpointer 'stroe'; choose from store"):
        find_checkpointer("stroe")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module\n", "cannot be loaded: ModuleNotFoundError"),
        (
            "class Store:\n    def save(self, folder, state): ...\n",
            "it lacks save or load",
        ),
    ],
)
def test_one_that_cannot_be_used_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    install_plugin(tmp_path, monkeypatch, CHECKPOINTERS, "store", source, "Store")
    with pytest.raises(ConfigError, match=message):
        find_checkpointer("store")
