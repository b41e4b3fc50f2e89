"""Say which distributions a release would publish: those whose version changed since a revision.

    python scripts/what_to_publish.py [REVISION]
    python scripts/what_to_publish.py --check [REVISION]

REVISION is the last published state: a tag, a branch or a commit; the latest tag by default, or the beginning of the
repository where there is none. The version of the core is in nnterp_vllm_core/_version.py, a family's in its
pyproject.toml. Nothing else decides: a change without a new version is not published, and is listed for the author to see.

With --check, exit with status 1 when a new version's CHANGELOG.md has no section for it, or a version went down.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

VERSION = re.compile(r"^(?:__version__|version)\s*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """One published package: its name, its folder in the repository, and the file that holds its version."""

    name: str
    folder: str
    version_file: str


def distributions(root: Path) -> list[Distribution]:
    """The core, then every family by name."""
    core = Distribution(name="nnterp-vllm", folder="nnterp_vllm_core", version_file="nnterp_vllm_core/_version.py")
    families = [
        Distribution(
            name=f"nnterp-vllm-{file.parent.name.replace('_', '-')}",
            folder=f"nnterp_vllm_families/{file.parent.name}",
            version_file=str(file.relative_to(root)),
        )
        for file in sorted(root.glob("nnterp_vllm_families/*/pyproject.toml"))
    ]
    return [core, *families]


def git(root: Path, *arguments: str) -> str | None:
    """What git prints; ``None`` when it fails."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def version_in(text: str | None) -> str | None:
    """The version that a file names; ``None`` for a file that is not there."""
    found = None if text is None else VERSION.search(text)
    return None if found is None else found[1]


def numbers(version: str) -> list[int]:
    """A version's numbers, for comparing."""
    return [int(part) for part in re.findall(r"\d+", version)]


def last_published(root: Path) -> str | None:
    """The latest tag, if there is any."""
    tag = git(root, "describe", "--tags", "--abbrev=0")
    return None if tag is None else tag.strip()


def report(root: Path, revision: str | None) -> tuple[list[str], list[str], list[str]]:
    """What would be published, what changed without a new version, and what is wrong; one line each."""
    publish, unversioned, wrong = [], [], []
    for one in distributions(root):
        now = version_in((root / one.version_file).read_text())
        if now is None:
            wrong.append(f'{one.version_file}: no version; expected a line such as version = "0.1.0"')
            continue
        before = None if revision is None else version_in(git(root, "show", f"{revision}:{one.version_file}"))
        if before == now:
            if git(root, "diff", "--name-only", str(revision), "--", one.folder):
                unversioned.append(f"{one.name} {now}")
            continue
        publish.append(f"{one.name} {now} ({'new' if before is None else f'was {before}'})")
        changelog = root / ("CHANGELOG.md" if one.name == "nnterp-vllm" else f"{one.folder}/CHANGELOG.md")
        if not changelog.exists() or f"## {now}" not in changelog.read_text():
            wrong.append(f"{one.name} {now}: {changelog.relative_to(root)} has no section '## {now}'")
        if before is not None and numbers(now) < numbers(before):
            wrong.append(f"{one.name} {now}: lower than {before}, which is published")
    return publish, unversioned, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", metavar="REVISION", nargs="?", help="the last published state")
    parser.add_argument("--check", action="store_true", help="fail on a version without a changelog, or a lower one")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help=argparse.SUPPRESS)
    args = parser.parse_args()
    revision = args.revision or last_published(args.root)
    if revision is not None and git(args.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") is None:
        parser.error(f"REVISION: {revision!r} is no commit, tag or branch here")
    publish, unversioned, wrong = report(args.root, revision)
    print(f"Since {revision or 'the beginning'}:")
    print("\n".join(f"  publish {line}" for line in publish) or "  nothing to publish")
    for line in unversioned:
        print(f"  changed, version kept: {line}")
    for line in wrong:
        print(f"  wrong: {line}")
    sys.exit(1 if wrong and args.check else 0)


if __name__ == "__main__":
    main()
