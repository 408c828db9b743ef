"""The wheel: complete, installable into an empty environment, usable outside the repository."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("stream_app", "producers")
pytestmark = pytest.mark.slow


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(  # type: ignore[call-overload]
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing old gets in."""
    folder = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    quiet = ("--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *quiet, "--no-deps", "-w", folder / "dist", folder)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """An empty environment with the wheel; its dependencies come from ours, to save a minute."""
    folder = wheel.parent.parent / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install")
    run(*pip, "--quiet", "--disable-pip-version-check", "--no-deps", wheel)
    return folder


def outside(installed: Path, *command: str, cwd: Path) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(cwd),
        "PYTHONPATH": sysconfig.get_path("purelib"),
    }
    return run(installed / "bin" / command[0], *command[1:], cwd=cwd, env=environment)


def test_every_file_of_the_packages_is_inside(wheel: Path) -> None:
    """Code, pages, the browser module, rights: what git has is in the wheel."""
    listed = run("git", "ls-files", *PACKAGES, cwd=ROOT).split()
    packed = set(zipfile.ZipFile(wheel).namelist())

    assert set() == set(listed) - packed


def test_the_source_archive_is_complete(tmp_path: Path) -> None:
    """From the archive alone it can be built, tested and deployed."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    (built,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    listed = set(run("git", "ls-files", cwd=ROOT).split())

    assert set() == {name for name in listed if (ROOT / name).exists()} - packed


def test_both_packages_are_typed(wheel: Path) -> None:
    """Type checkers of products that embed the client look for this file."""
    packed = zipfile.ZipFile(wheel).namelist()

    assert {f"{name}/py.typed" for name in PACKAGES} <= set(packed)


def test_runs_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    """Help, a small simulation, and the monitor's pages, from the installed files."""
    shutil.copy(ROOT / "deploy" / "experiments" / "five-arms.toml", tmp_path)
    helped = outside(installed, "shufflebandit", "--help", cwd=tmp_path)
    simulated = outside(
        installed, "shufflebandit", "simulate", "five-arms.toml", "--runs", "3",
        "--set", "horizon=20000", "--json", cwd=tmp_path,
    )  # fmt: skip
    look = "import stream_app; from stream_app.monitor import pages; print(stream_app.__file__); "
    look += "print(*pages._files())"
    where, files = outside(installed, "python", "-c", look, cwd=tmp_path).splitlines()

    assert "simulate" in helped
    assert '"regret' in simulated
    assert where.startswith(str(installed))
    assert {"index.html", "page.js", "page.css"} <= set(files.split())


def test_all_that_is_imported_is_declared(wheel: Path) -> None:
    """A dependency of a dependency may go; what we import ourselves, we ask for."""
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    stated = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    declared = {_plain(re.split(r"[^\w-]", text)[0]) for text in stated}
    owners = packages_distributions()
    imported = {
        module: _plain(owners[module][0])
        for name in archive.namelist()
        if name.endswith(".py")
        for module in _imports(archive.read(name))
        if module not in sys.stdlib_module_names and module not in PACKAGES
    }

    assert {} == {module: owner for module, owner in imported.items() if owner not in declared}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _imports(source: bytes) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
    return found
