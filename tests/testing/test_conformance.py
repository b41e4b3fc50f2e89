"""The conformance kit finds what is wrong with a declaration, says where, and passes what is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nnterp_vllm_core.testing import SIZES, ConformanceSuite
from nnterp_vllm_core.testing import suite as suite_module
from nnterp_vllm_core.testing.case import Case, Subject
from nnterp_vllm_core.testing.compare import FLOAT32, TOGETHER

HERE = Path(__file__).parent

#: A planted mistake, promises that must fail for it, and what the messages must name.
PLANTED = [
    ("Norm", {"every_value_equals_transformers", "contributions_add_up"}, "layers.0.self_attn.attention_output"),
    ("HalfAStream", {"every_value_equals_transformers", "the_last_stream_projects"}, "layers.0.layer_output"),
    ("Factor", {"every_value_equals_transformers", "contributions_add_up"}, "layers.3.mlp.mlp_output"),
    ("NoLastNorm", {"the_last_stream_projects"}, "projected"),
    ("MixedUpArguments", {"every_value_equals_transformers"}, "layers.0.self_attn.attention_keys"),
    ("Size", {"sizes_are_those"}, "num_kv_heads"),
    ("TransformersPlace", {"transformers_engine_serves"}, "layers.0.self_attn.attention_output"),
    ("TransformersFactor", {"transformers_engine_serves"}, "layers.0: input + contributions"),
    ("Bound", {"every_value_equals_transformers"}, "allowed: 1.0e-12"),
]


@pytest.fixture(scope="module")
def output() -> str:
    """What pytest says about ``planted.py``."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--tb=short", str(HERE / "planted.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent.parent, check=False)
    assert done.returncode == 1, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def failed(output: str, name: str) -> set[str]:
    """The promises of one class that did not hold."""
    return set(re.findall(rf"^(?:FAILED|ERROR) \S*::Test{name}::test_(\w+)", output, flags=re.MULTILINE))


@pytest.mark.parametrize(("name", "promises", "named"), PLANTED, ids=[name for name, _, _ in PLANTED])
def test_a_planted_mistake_is_found_and_located(output: str, name: str, promises: set[str], named: str) -> None:
    found = failed(output, name)
    for promise in promises:
        assert any(one.startswith(promise) for one in found), (promise, sorted(found))
    sections = re.split(r"^_{3,} (Test\w+)\.", output, flags=re.MULTILINE)
    text = "".join(body for title, body in zip(sections[1::2], sections[2::2], strict=True) if title == f"Test{name}")
    assert named in text


def test_a_right_declaration_passes(output: str) -> None:
    assert failed(output, "Right") == set()


def test_a_message_names_family_engine_value_layer_observed_and_allowed(output: str) -> None:
    pattern = (
        r"llama on vllm: values equal transformers': \d+ findings\n"
        r"E +layers\.0\.self_attn\.attention_output of 7 tokens: \d\.\de[-+]\d\d of its largest magnitude; allowed: 1\.0e-05"
    )
    assert re.search(pattern, output)


class Llama(ConformanceSuite):
    """Not collected: its name does not begin as pytest's classes do."""

    model_type = "llama"
    config = {**SIZES}
    no_vllm = {"==0.26.*": "vLLM 0.26 cannot import it", "<0.20": "there was none"}
    no_backend = {"<0.32": "it loads no bias"}
    tolerances = {
        "mlp_output": (1.0, "here"),
        "backend:*": (2.0, "there"),
        "together:mlp_output": (3.0, "beside others"),
        "together:backend:logits": (4.0, "beside others there"),
    }


@pytest.mark.parametrize(
    ("version", "engines", "no_vllm", "no_backend"),
    [
        ("0.26.0", (), "vLLM 0.26 cannot import it", "it loads no bias"),
        ("0.26.1+cpu", (), "vLLM 0.26 cannot import it", "it loads no bias"),
        ("0.28.0", ("vllm",), "", "it loads no bias"),
        ("0.32.0", ("vllm", "backend"), "", ""),
        (None, ("vllm", "backend"), "", ""),
    ],
)
@pytest.mark.parametrize("named", [(), ("vllm", "backend")], ids=["found", "named"])
def test_an_engine_is_left_out_for_the_versions_that_a_class_names(
    version: str | None,
    engines: tuple[str, ...],
    no_vllm: str,
    no_backend: str,
    named: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suite_module, "engine_version", lambda: version)
    monkeypatch.setattr(Llama, "engines", named)
    assert (Llama.runs_on(), Llama.without_vllm(), Llama.without_backend()) == (engines, no_vllm, no_backend)


LEFT_OUT = """
from nnterp_vllm_core.testing import SIZES, ConformanceSuite


class TestLlama(ConformanceSuite):
    model_type = "llama"
    config = {**SIZES}
    no_vllm = {">=0": "it cannot be imported"}
    no_backend = {">=0": "it loads no bias"}
"""


def test_the_summary_says_which_engines_were_left_out_and_why(tmp_path: Path) -> None:
    (tmp_path / "test_left_out.py").write_text(LEFT_OUT)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "test_left_out.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "llama on vLLM's own implementation: it cannot be imported\n" in done.stdout
    assert "llama on vLLM's Transformers backend: it loads no bias\n" in done.stdout
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    assert tests
    assert all(line.endswith("[transformers]") for line in tests)


def test_a_bound_is_for_the_engine_and_the_comparison_that_it_names(tmp_path: Path) -> None:
    case = Case(suite=Llama, variant="", reference=None, folder=tmp_path)  # type: ignore[arg-type]  # nothing is asked
    vllm, backend = (Subject(case=case, engine=engine, model=None, before={}) for engine in ("vllm", "backend"))
    assert [vllm.allowed("mlp_output"), vllm.allowed("logits")] == [1.0, FLOAT32]
    assert [vllm.together("mlp_output"), vllm.together("logits")] == [3.0, TOGETHER]
    assert [backend.allowed("mlp_output"), backend.allowed("logits")] == [2.0, 2.0]
    assert [backend.together("mlp_output"), backend.together("logits")] == [TOGETHER, 4.0]


def test_the_pytest_plugin_loads_neither_torch_nor_vllm() -> None:
    program = (
        "import sys, nnterp_vllm_core.testing.plugin, nnterp_vllm_core.testing; "
        "print(sorted({'torch', 'vllm', 'nnsight', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
