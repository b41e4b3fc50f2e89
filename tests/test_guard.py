"""Mistakes outside the library's own process: no engine, no main guard."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.scripts import run

HIDDEN = """
import sys

class WithoutVLLM:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] == "vllm" else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [WithoutVLLM(finder) for finder in sys.meta_path]
"""

UNGUARDED = """
from nnterp_vllm_core import StandardizedVLLM

model = StandardizedVLLM({checkpoint!r}, dispatch=True, dtype="float32", max_model_len=128)
"""

IN_A_FUNCTION = """
from nnterp_vllm_core import StandardizedVLLM

def main():
    StandardizedVLLM({checkpoint!r}, dispatch=True, dtype="float32", max_model_len=128)

main()
"""

UNDISPATCHED = """
from nnterp_vllm_core import StandardizedVLLM

model = StandardizedVLLM({checkpoint!r}, dtype="float32", max_model_len=128)
print(model.num_layers, model.family.__name__)
"""


def test_without_an_engine_the_error_names_the_extras(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(HIDDEN + "from nnterp_vllm_core import StandardizedVLLM\nStandardizedVLLM('anything')\n")
    done = run(script, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "EngineNotInstalled: No vLLM engine is installed" in last
    assert "nnterp-vllm[cuda]" in last
    assert "nnterp-vllm[cpu]" in last


@pytest.mark.parametrize(("source", "line"), [(UNGUARDED, 4), (IN_A_FUNCTION, 7)], ids=["top level", "called from it"])
def test_a_script_without_a_main_guard_is_told_so(
    checkpoints: dict[str, Path], tmp_path: Path, source: str, line: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(source.format(checkpoint=str(checkpoints["qwen2"])))
    done = run(script, check=False)
    assert done.returncode == 1
    (error,) = [one for one in done.stderr.splitlines() if "MainGuardError: " in one]
    assert f"script.py, line {line}, builds the engine at the top level of the script" in error
    assert 'Put the lines that build the model and trace under `if __name__ == "__main__":`' in error


def test_a_model_without_an_engine_needs_no_guard(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNDISPATCHED.format(checkpoint=str(checkpoints["qwen2"])))
    assert "4 nnterp_vllm_families.qwen2" in run(script).stdout
