"""The conformance kit finds what is wrong with a declaration, says where, and passes what is right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_pytest_plugin_loads_neither_torch_nor_vllm() -> None:
    program = (
        "import sys, nnterp_vllm_core.testing.plugin, nnterp_vllm_core.testing; "
        "print(sorted({'torch', 'vllm', 'nnsight', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
