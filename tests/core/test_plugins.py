import re
from pathlib import Path

import pytest
from tests.kit.plugins import install_plugin

from trimtab.core.errors import ConfigError, MissingExtra
from trimtab.core.plugins import find_plugin, list_plugins, load_plugins

GROUP = "trimtab.tools"
TOOL = "class Tool(str):\n    name = 'hammer'\n"
BROKEN = [
    ("raise RuntimeError('no\\nGPU')\n", r"RuntimeError: no GPU"),
    ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such"),
    ("", "AttributeError: module"),
    ("def broken(:\n", "SyntaxError"),
    ("class Tool(str):\n    def __init__(self): raise OSError('no disk')\n", "OSError: no disk"),
    ("class Tool:\n    name = 'saw'\n", "it lacks a handle"),
]


def load(taken: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
    made, failures = load_plugins(GROUP, str, needs="a handle", taken=taken)
    return [str(plugin) for plugin in made], failures


def test_a_group_without_plugins_is_empty() -> None:
    assert list_plugins("trimtab.no_such_group") == []
    assert load() == ([], [])


def test_a_plugin_has_a_name_and_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "tool", TOOL, "Tool")
    (plugin,) = list_plugins(GROUP)
    assert (plugin.name, plugin.package) == ("tool", "tool-package 1.2")
    assert load() == (["tool (tool-package 1.2)"], [])


@pytest.mark.parametrize(("source", "reason"), [*BROKEN, ("class Tool(str): ...\n", "it lacks")])
def test_one_that_cannot_be_used_is_left_out_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "broken", source, "Tool")
    install_plugin(tmp_path, monkeypatch, GROUP, "sound", TOOL, "Tool")
    made, (failure,) = load()
    assert made == ["sound (sound-package 1.2)"]
    pattern = rf"Plug-in 'broken' \(trimtab\.tools\) of broken-package 1\.2 is left out: {reason}"
    assert re.match(pattern, failure)


def test_no_two_have_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "first", TOOL, "Tool")
    install_plugin(tmp_path, monkeypatch, GROUP, "second", TOOL, "Tool")
    made, (failure,) = load()
    assert made == ["first (first-package 1.2)"]
    assert failure.endswith("is left out: there is a tool 'hammer' already.")
    assert load(taken=("hammer",))[0] == []


def test_one_is_found_by_name_by_path_and_in_our_own_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "tool", TOOL, "Tool")
    own = {"ours": "tool_plugin:Tool", "tool": "builtins:str"}
    assert type(find_plugin("tool", GROUP, str, needs="a handle")).__name__ == "Tool"
    assert type(find_plugin("tool_plugin:Tool", GROUP, str, needs="a handle")).__name__ == "Tool"
    assert type(find_plugin("ours", GROUP, str, needs="a handle", own=own)).__name__ == "Tool"
    assert type(find_plugin("tool", GROUP, str, needs="a handle", own=own)) is str
    with pytest.raises(ConfigError, match="there is no tool 'saw'; choose from ours, tool, tool"):
        find_plugin("saw", GROUP, str, needs="a handle", own=own)


@pytest.mark.parametrize(("source", "reason"), BROKEN)
def test_one_that_was_named_and_cannot_be_used_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "tool", source, "Tool")
    with pytest.raises(ConfigError, match=reason):
        find_plugin("tool", GROUP, str, needs="a handle")


def test_an_error_of_trimtab_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from trimtab.core.errors import MissingExtra\n"
        "def Tool(): raise MissingExtra('install it: pip install acme')\n"
    )
    install_plugin(tmp_path, monkeypatch, GROUP, "tool", source, "Tool")
    with pytest.raises(MissingExtra, match="pip install acme"):
        find_plugin("tool", GROUP, str, needs="a handle")
