"""Small real distributions, installed into a folder of their own that subprocesses find on PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

#: A family's module; ``{block}`` is the block class that it declares for vLLM.
FAMILY = """
from nnterp_vllm_core.family import Family, FusedStream, Implementation
from nnterp_vllm_core.hookspecs import hookimpl

FAMILY = Family(
    model_types=("{model_type}",),
    vllm=Implementation(
        source="vllm.model_executor.models.llama", block="LlamaDecoderLayer", stream=FusedStream()
    ),
    {more}
)

@hookimpl
def nnterp_vllm_families():
    return [FAMILY]
"""


def family(model_type: str, more: str = "") -> str:
    """The source of a plugin module that covers ``model_type``."""
    return FAMILY.format(model_type=model_type, more=more)


@dataclass
class Site:
    """A folder that holds installed distributions, as pip would leave them."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def install(
        self,
        name: str,
        *,
        version: str = "1.0",
        module: str = "",
        source: str = "",
        families: tuple[str, ...] = (),
        plugin: bool = False,
        requires: tuple[str, ...] = ("nnterp-vllm>=0.1",),
    ) -> None:
        """Write one distribution: its metadata, its entry points and its module."""
        module = module or name.replace("-", "_")
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {one}" for one in requires), ""]))
        points = ""
        if families:
            points += "[nnterp_vllm.families]\n" + "".join(f"{one} = {module}\n" for one in families)
        if plugin:
            points += f"[nnterp_vllm.plugins]\n{name} = {module}\n"
        (info / "entry_points.txt").write_text(points)
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run this Python with the folder on its path."""
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200", **self.environment, **environment}
        return subprocess.run(
            [sys.executable, *arguments], env=env, capture_output=True, text=True, check=False, timeout=500
        )

    def python(self, code: str, **environment: str) -> str:
        """What a program prints.

        Raises:
            AssertionError: It fails; the message is what it wrote to stderr.
        """
        done = self.run("-c", textwrap.dedent(code), **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def cli(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``nnterp-vllm`` with the folder on its path."""
        return self.run("-m", "nnterp_vllm_core.cli", *arguments, **environment)
