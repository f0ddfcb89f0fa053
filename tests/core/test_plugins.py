import re
from pathlib import Path

import pytest
from tests.kit.plugins import install_plugin

from trimtab.core.plugins import load_plugins

GROUP = "trimtab.tests"


def test_a_group_without_plugins_is_empty() -> None:
    assert load_plugins("trimtab.no_such_group") == []


def test_a_plugin_has_its_name_its_package_and_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "answer", "VALUE = 42\n", "VALUE")
    (plugin,) = load_plugins(GROUP)
    assert (plugin.name, plugin.package, plugin.version) == ("answer", "answer-package", "1.2")
    assert plugin.object == 42
    assert plugin.failure is None


@pytest.mark.parametrize(
    ("source", "attribute", "reason"),
    [
        ("raise RuntimeError('no\\nGPU')\n", "VALUE", r"RuntimeError: no GPU\."),
        ("import no_such_module\n", "VALUE", "ModuleNotFoundError: No module named 'no_such"),
        ("", "VALUE", "AttributeError: module"),
        ("def broken(:\n", "VALUE", "SyntaxError"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, attribute: str, reason: str
) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "broken", source, attribute)
    install_plugin(tmp_path, monkeypatch, GROUP, "sound", "VALUE = 1\n", "VALUE")
    broken, sound = load_plugins(GROUP)
    assert broken.object is None
    pattern = rf"Plug-in 'broken' \(trimtab\.tests\) of broken-package 1\.2 .* left out: {reason}"
    assert broken.failure is not None
    assert re.match(pattern, broken.failure)
    assert sound.object == 1
