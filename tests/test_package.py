"""The sdist and the wheel: built here, with nothing missing, nothing stray and valid metadata."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.version import Version

from trimtab._version import __version__

ROOT = Path(__file__).parents[1]
NAME = f"trimtab-{__version__}"
LARGEST_WHEEL, LARGEST_SDIST = 1_500_000, 4_000_000
"""Bytes; a file that does not belong there shows in them."""


def source_files(folder: str) -> set[str]:
    """The files of the checkout, as git has them; all files where there is no git."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {name for name in found.stdout.splitlines() if (ROOT / name).exists()}
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in paths if path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the sdist."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    call = "from hatchling.build import build_{0}; build_{0}({1!r})"
    for kind, place in (("sdist", ROOT), ("wheel", folder / NAME)):
        if kind == "wheel":
            with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
                # Python before 3.11.4 has no filters.
                options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                archive.extractall(folder, **options)  # type: ignore[arg-type]
        script = call.format(kind, str(folder))
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=place, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Metadata:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{NAME}.dist-info/METADATA")
    return Metadata.from_email(text, validate=True)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if not name.startswith(f"{NAME}.dist-info/")}
    assert inside == {name.removeprefix("src/") for name in source_files("src")}
    assert "trimtab/py.typed" in inside
    licenses = {name.split("/")[-1] for name in names if "/licenses/" in name}
    assert licenses == {"LICENSE", "uplot.LICENSE"}


def test_the_sdist_holds_what_the_tests_need(built: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    folders = ("src", "tests", "benchmarks", "docs", "examples", "scripts")
    wanted = set().union(*map(source_files, folders))
    own = {"pyproject.toml", "PKG-INFO", "LICENSE", ".gitignore"}
    assert wanted <= names
    assert {name for name in names - wanted - own if not name.endswith(".md")} == set()


def test_neither_is_large_or_holds_compiled_files(built: Path, wheel: Path) -> None:
    assert wheel.stat().st_size < LARGEST_WHEEL
    assert (built / f"{NAME}.tar.gz").stat().st_size < LARGEST_SDIST
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.endswith((".pyc", ".so", ".orig", ".swp"))]


def test_the_metadata_is_valid_and_complete(metadata: Metadata) -> None:
    trove = pytest.importorskip("trove_classifiers")
    assert set(metadata.classifiers or ()) <= set(trove.classifiers)
    assert str(metadata.version) == __version__
    assert metadata.description_content_type == "text/markdown"
    assert (metadata.description or "").startswith("# trimtab\n")
    assert metadata.license_expression == "Apache-2.0 AND MIT"
    assert len(metadata.summary or "") < 200
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in (metadata.classifiers or ())


def test_it_brings_three_packages_and_every_extra_is_open_at_the_top(metadata: Metadata) -> None:
    required = metadata.requires_dist or []
    plain = {one.name for one in required if one.marker is None}
    assert plain == {"numpy", "rich", "typer"}
    for one in required:
        assert all(part.operator == ">=" for part in one.specifier) or one.name == "torchtitan"
    assert all(isinstance(one, Requirement) for one in required)


def test_the_command_is_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"{NAME}.dist-info/entry_points.txt").decode()
    assert text.split() == ["[console_scripts]", "trimtab", "=", "trimtab.cli.main:main"]


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = [line.split()[1] for line in text.splitlines() if line.startswith("## ")]
    assert Version(__version__).base_version in released[:2]


def test_the_wheel_works_by_itself(wheel: Path, tmp_path: Path) -> None:
    """Imported from the wheel alone, whatever the checkout holds."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    script = "import trimtab; print(trimtab.__file__)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(tmp_path))
    log = ROOT / "examples" / "run.csv"
    command = [sys.executable, "-m", "trimtab.cli", "diagnose", str(log), "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr


@pytest.mark.skipif(not (ROOT / ".github").exists(), reason="the sdist has none")
def test_what_a_code_host_reads_is_of_the_last_release_and_of_every_python() -> None:
    yaml = pytest.importorskip("yaml")
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.search(r"(?m)^## (\S+) \((\d{4}-\d\d-\d\d)\)", changes)
    assert released
    assert (cited["version"], str(cited["date-released"])) == released.groups()
    assert cited["license"] in pyproject["license"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert {"run": ".ci/run"} in workflow["jobs"]["checks-and-tests"]["steps"]
    cases = workflow["jobs"]["matrix"]["strategy"]["matrix"]["cases"]
    pythons = {f"Python {version}" for version in re.findall(r"3\.\d\d", str(cases))}
    listed = [one.split(" :: ")[-1] for one in pyproject["classifiers"] if ":: 3.1" in one]
    assert pythons == {f"Python {version}" for version in listed}
