"""A release publishes exactly the distributions whose version file names a new version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "what_to_publish.py"


class Repository:
    """A small repository laid out like this one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        self.core("0.1.0")
        for family in ("llama", "gpt_neox"):
            self.family(family, "0.1.0")
        self.commit("first")
        self.git("tag", "v1")

    def git(self, *arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(self.root), *identity, *arguments], check=True, capture_output=True)

    def commit(self, message: str) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)

    def core(self, version: str, log: str = "") -> None:
        (self.root / "nnterp_vllm_core").mkdir(exist_ok=True)
        (self.root / "nnterp_vllm_core" / "_version.py").write_text(f'__version__ = "{version}"\n')
        (self.root / "CHANGELOG.md").write_text(f"## {log or version}\n")

    def family(self, name: str, version: str, log: str = "") -> None:
        folder = self.root / "nnterp_vllm_families" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(f'[project]\nname = "x"\nversion = "{version}"\n')
        (folder / "CHANGELOG.md").write_text(f"## {log or version}\n")

    def ask(self, *arguments: str) -> tuple[int, list[str]]:
        command = [sys.executable, str(SCRIPT), "--root", str(self.root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, [line.strip() for line in (done.stdout + done.stderr).splitlines()]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A repository whose first state is tagged ``v1``."""
    return Repository(tmp_path)


def test_nothing_changed_publishes_nothing(repository: Repository) -> None:
    assert repository.ask() == (0, ["Since v1:", "nothing to publish"])


def test_a_family_moves_alone(repository: Repository) -> None:
    repository.family("gpt_neox", "0.2.0")
    repository.commit("second")
    assert repository.ask("--check") == (0, ["Since v1:", "publish nnterp-vllm-gpt-neox 0.2.0 (was 0.1.0)"])


def test_a_new_family_and_a_new_core_are_published(repository: Repository) -> None:
    repository.family("qwen2", "0.1.0")
    repository.core("0.2.0")
    repository.commit("second")
    assert repository.ask("--check", "v1") == (
        0,
        ["Since v1:", "publish nnterp-vllm 0.2.0 (was 0.1.0)", "publish nnterp-vllm-qwen2 0.1.0 (new)"],
    )


def test_a_change_without_a_version_is_shown_and_not_published(repository: Repository) -> None:
    (repository.root / "nnterp_vllm_families" / "llama" / "__init__.py").write_text("LLAMA = 1\n")
    repository.commit("second")
    assert repository.ask() == (0, ["Since v1:", "nothing to publish", "changed, version kept: nnterp-vllm-llama 0.1.0"])


def test_a_version_without_a_changelog_or_below_the_published_one_fails_the_check(repository: Repository) -> None:
    repository.family("llama", "0.2.0", log="0.1.0")
    repository.core("0.0.9")
    repository.commit("second")
    status, lines = repository.ask("--check")
    assert status == 1
    assert lines[-2:] == [
        "wrong: nnterp-vllm 0.0.9: lower than 0.1.0, which is published",
        "wrong: nnterp-vllm-llama 0.2.0: nnterp_vllm_families/llama/CHANGELOG.md has no section '## 0.2.0'",
    ]


def test_without_a_tag_everything_is_published(repository: Repository) -> None:
    repository.git("tag", "--delete", "v1")
    status, lines = repository.ask()
    assert status == 0
    assert lines[0] == "Since the beginning:"
    assert [line.split()[1] for line in lines[1:]] == ["nnterp-vllm", "nnterp-vllm-gpt-neox", "nnterp-vllm-llama"]


def test_a_revision_that_does_not_exist_is_an_error(repository: Repository) -> None:
    status, lines = repository.ask("v9")
    assert status == 2
    assert lines[-1].endswith("REVISION: 'v9' is no commit, tag or branch here")
