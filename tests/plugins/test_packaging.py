"""What is built installs: our own wheels into a clean environment, and a stranger's plugin beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nnterp_vllm_core import __version__

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.parent for path in ROOT.glob("nnterp_vllm_families/*/pyproject.toml"))
PROGRAM = Path(__file__).with_name("trace_program.py")

#: Eight float32 roundings of the largest magnitude: three sums, each of numbers that were rounded before.
IDENTITY = 8 * 2.0**-23


@dataclass
class Clean:
    """A virtual environment that shares this interpreter's packages, except for everything of ours."""

    folder: Path

    def run(self, command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment from an empty folder."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NNTERP_VLLM"))}
        env |= {"COLUMNS": "200", **environment}
        program = str(self.folder / "bin" / command)
        cwd = self.folder / "empty"
        cwd.mkdir(exist_ok=True)
        return subprocess.run(
            [program, *arguments], env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=500
        )

    def install(self, *what: str) -> None:
        """Install without any package index."""
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.folder / "bin" / "python"),
            "install",
            "--quiet",
            "--no-index",
        ]
        done = subprocess.run([*pip, *what], capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode == 0, done.stderr

    def trace(self, checkpoint: Path) -> dict[str, Any]:
        """What the trace program sees."""
        done = self.run("python", str(PROGRAM), str(checkpoint))
        assert done.returncode == 0, done.stderr
        seen: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
        return seen


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheels of the core and of every family, as ``make wheels`` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    families = [str(folder) for folder in FAMILIES]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    done = subprocess.run([*command, str(folder), str(ROOT), *families], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> Clean:
    """An environment with ``nnterp-vllm[qwen2,llama]`` from the wheels.

    Links to each package stand in for a download of torch and vLLM. A path file in a folder that is itself on the path is
    not read, so no editable install of ours comes along.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False)
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(("nnterp", "_nnterp", "__editable__")) and path.suffix != ".pth":
            (borrowed / path.name).symlink_to(path)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    environment = Clean(folder)
    environment.install("--find-links", str(wheels), "nnterp-vllm[qwen2,llama]")
    return environment


def test_the_extras_bring_their_families_and_the_command(clean: Clean) -> None:
    rows = json.loads(clean.run("nnterp-vllm", "families", "--json").stdout)
    assert [(row["distribution"], row["status"]) for row in rows] == [
        ("nnterp-vllm-llama", "ok"),
        ("nnterp-vllm-qwen2", "ok"),
    ]


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_the_installed_wheels_trace(clean: Clean, checkpoints: dict[str, Path], name: str) -> None:
    seen = clean.trace(checkpoints[name])
    assert Path(seen["core"]).is_relative_to(clean.folder)
    assert seen["family"] == f"nnterp_vllm_families.{name}"
    assert seen["identity"] <= IDENTITY
    assert (seen["layers"], seen["logits"]) == (4, [1, 1, 512])


def test_a_family_that_is_not_installed_is_named_with_its_package(clean: Clean, checkpoints: dict[str, Path]) -> None:
    done = clean.run("nnterp-vllm", "support", str(checkpoints["gpt2"]))
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "UnsupportedFamily: No installed plugin covers model_type 'gpt2'; installed: llama, qwen2. Try `pip install "
        "nnterp-vllm-gpt2`, or pass family= with a declaration of your own."
    )


def test_a_plugin_made_by_new_builds_installs_and_traces(clean: Clean, tmp_path: Path) -> None:
    from nnterp_vllm_core.testing import SIZES, tiny

    made = clean.run("nnterp-vllm", "new", "mistral", "--folder", str(tmp_path / "mistral"))
    assert made.returncode == 0, made.stderr
    clean.install("--no-build-isolation", str(tmp_path / "mistral"))
    checked = clean.run("nnterp-vllm", "check", "--static", "mistral")
    assert checked.stdout.splitlines() == ["nnterp-vllm-mistral 0.1.0: model types mistral", "declaration: ok"]
    seen = clean.trace(tiny("mistral", tmp_path / "checkpoint", **SIZES))
    assert seen["family"] == "nnterp_vllm_mistral"
    assert seen["identity"] <= IDENTITY


def test_what_new_writes_passes_its_own_check(clean: Clean, tmp_path: Path) -> None:
    """The whole way of a stranger: new, install, check with the conformance test on the engine."""
    made = clean.run("nnterp-vllm", "new", "toy", "--folder", str(tmp_path / "toy"))
    assert made.returncode == 0, made.stderr
    clean.install("--no-build-isolation", str(tmp_path / "toy"))
    checked = clean.run("nnterp-vllm", "check", "toy")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    lines = checked.stdout.splitlines()
    assert lines[:2] == ["nnterp-vllm-toy 0.1.0: model types toy", "declaration: ok"]
    assert lines[-1] == "conformance: ok"


def test_the_cores_wheel_holds_the_core_alone(wheels: Path) -> None:
    (core,) = wheels.glob(f"nnterp_vllm-{__version__}-*.whl")
    names = set(zipfile.ZipFile(core).namelist())
    assert {"nnterp_vllm_core/py.typed", "nnterp_vllm_core/template/pyproject.toml.txt"} <= names
    assert not any(name.startswith("nnterp_vllm_families") for name in names)
    assert len(list(wheels.glob("*.whl"))) == len(FAMILIES) + 1


@pytest.mark.parametrize("folder", FAMILIES, ids=lambda folder: folder.name)
def test_a_familys_wheel_holds_its_package_and_type_marker_alone(wheels: Path, folder: Path) -> None:
    (wheel,) = wheels.glob(f"nnterp_vllm_{folder.name}-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert all(Path(name).parent == Path("nnterp_vllm_families", folder.name) for name in names)
    assert {"__init__.py", "py.typed"} <= {Path(name).name for name in names}


@pytest.mark.parametrize("folder", FAMILIES, ids=lambda folder: folder.name)
def test_a_family_is_packaged_as_its_declaration_says(folder: Path) -> None:
    """Entry points and declared model types are the same set, and the core is the only dependency."""
    from nnterp_vllm_core.loader import override

    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["nnterp_vllm.families"]
    assert set(points.values()) == {f"nnterp_vllm_families.{folder.name}"}
    for model_type in points:
        assert model_type in override(f"nnterp_vllm_families.{folder.name}", model_type).family.model_types
    assert [line.partition(">")[0] for line in project["dependencies"]] == ["nnterp-vllm"]
    assert (folder / "py.typed").exists()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(line.startswith(project["name"]) for lines in extras.values() for line in lines)
