"""Packages with entry points, installed for the length of one test."""

import sys
from pathlib import Path

import pytest


def install_plugin(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    name: str,
    source: str,
    attribute: str,
) -> None:
    """Install a package `name-package` 1.2 whose module `name_plugin` offers one entry point."""
    (folder / f"{name}_plugin.py").write_text(source)
    metadata = folder / f"{name}_package-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}-package\nVersion: 1.2\n"
    )
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}_plugin:{attribute}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, f"{name}_plugin", raising=False)
