"""Every experiment of a researcher gives the same numbers on vLLM, on its Transformers backend and on transformers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.blocks import FLOAT32
from support.oracle import gap, same
from support.researcher_blocks import BLOCKS, PROMPTS
from support.scripts import search_path

from nnterp_vllm_core import StandardizedTransformer, StandardizedVLLM, UnsupportedEngine

NAMES = ("qwen2", "llama", "gpt2")
#: vLLM's backend does not load the biases of GPT-2's c_attn, so nothing could agree there.
BACKEND = ("qwen2", "llama")

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def elsewhere(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """What the blocks give on an engine that has a process of its own; both start at once and run beside this one."""
    folder = tmp_path_factory.mktemp("blocks")
    started = {
        engine: _start(engine, folder / f"{engine}.pt", {name: checkpoints[name] for name in names})
        for engine, names in (("transformers", NAMES), ("backend", BACKEND))
    }
    found: dict[str, Results] = {}

    def get(engine: str) -> Results:
        if engine not in found:
            output, _ = started[engine].communicate(timeout=300)
            assert started[engine].returncode == 0, output[-6000:]
            found[engine] = torch.load(folder / f"{engine}.pt")
        return found[engine]

    return get


def _start(engine: str, out: Path, named: dict[str, Path]) -> subprocess.Popen[str]:
    arguments = [engine, str(out), *(f"{name}={path}" for name, path in named.items())]
    return subprocess.Popen(
        [sys.executable, "-m", "support.run_blocks", *arguments],
        env={**os.environ, "PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal keys, shapes and whole numbers, and real numbers within float32's rounding."""
    assert not isinstance(ours, str), ours
    assert not isinstance(theirs, str), theirs
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if value.is_floating_point():
            assert gap(value, theirs[key]) <= FLOAT32, (key, gap(value, theirs[key]))
        else:
            assert same(value, theirs[key]), key


# The checkpoint's mark stands below the block's: pytest runs all blocks on one engine before it asks for the next.
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("name", NAMES, scope="session")
def test_vllm_agrees_with_transformers(name: str, block: str, engines: Any, elsewhere: Callable[[str], Results]) -> None:
    ours = BLOCKS[block](engines.get(name), PROMPTS)
    assert_same(ours, elsewhere("transformers")[name][block])


@pytest.mark.parametrize("name", BACKEND)
@pytest.mark.parametrize("block", BLOCKS)
def test_vllms_transformers_backend_agrees_with_transformers(
    name: str, block: str, elsewhere: Callable[[str], Results]
) -> None:
    assert_same(elsewhere("backend")[name][block], elsewhere("transformers")[name][block])


# --- what only the other engine has -----------------------------------------------------------------------------------


@pytest.fixture
def qwen2(engines: Any) -> Any:
    """A vLLM engine that still serves after the test."""
    model = engines.get("qwen2")
    yield model
    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
        logits = model.logits.save()
    assert logits.isfinite().all()


def test_gradients_are_refused_on_vllm_with_the_way_out(qwen2: Any) -> None:
    block = qwen2.layers[1]
    refused = r"^UnsupportedEngine: This block asks for gradients, and a vLLM engine .* on StandardizedTransformer"
    with pytest.raises(RuntimeError, match=refused):
        with qwen2.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
            stream = block.layer_output
            loss = qwen2.logits.sum()
            with loss.backward():
                stream.grad.save()
    with pytest.raises(RuntimeError, match=refused):
        with qwen2.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
            stream = block.layer_output.requires_grad_(True)
            loss = qwen2.logits.sum()
            torch.autograd.grad(loss, stream)[0].save()


def test_a_padding_mask_is_refused_on_vllm_with_the_way_out(qwen2: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^Unavailable: .*attention_mask .*vLLM; StandardizedTransformer has masks"):
        with qwen2.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
            qwen2.attention_mask.save()
    with pytest.raises(UnsupportedEngine, match=r"^attention_mask= .*a vLLM engine has none.*invoke of its own"):
        with qwen2.trace(PROMPTS[0], attention_mask=torch.ones(1, 8), temperature=0.0, max_tokens=1):
            qwen2.logits.save()


@pytest.mark.parametrize("name", ["device_map", "torch_dtype", "max_memory", "low_cpu_mem_usage", "quantization_config"])
def test_an_argument_of_transformers_is_refused_on_vllm_with_the_way_out(name: str, checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedEngine, match=rf"^{name}= is transformers' .*: .+\. StandardizedTransformer takes it\.$"):
        StandardizedVLLM(str(checkpoints["qwen2"]), **{name: "auto"})


def test_transformers_still_loads_what_its_backend_on_vllm_has_loaded(engines: Any, checkpoints: dict[str, Path]) -> None:
    """vLLM's backend takes transformers' classes as they are; its mark for compilation would stay on them."""
    from transformers import Qwen2Model

    before = (Qwen2Model.__bases__, Qwen2Model.__init__, Qwen2Model.__call__)
    backend = engines.get("qwen2", model_impl="transformers")
    beside = StandardizedTransformer(str(checkpoints["qwen2"]), dispatch=True, dtype="float32")
    read: dict[str, torch.Tensor] = {}
    for engine, model in (("backend", backend), ("transformers", beside)):
        with model.trace(PROMPTS[0], max_tokens=1, temperature=0.0):
            last = model.layers[-1].layer_output[:, -1].save()
        read[engine] = last.cpu()
    # The largest of these numbers is 8.9, and on an H200 this backend's streams are up to 1.5e-6 of the largest off.
    scale = read["transformers"].abs().max().item() if torch.cuda.is_available() else 1.0
    torch.testing.assert_close(read["backend"], read["transformers"], atol=FLOAT32 * scale, rtol=0)
    assert (Qwen2Model.__bases__, Qwen2Model.__init__, Qwen2Model.__call__) == before
