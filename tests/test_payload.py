"""A request ships its block and the block's own data: no tree, and no value that the block binds before it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch
from support.blocks import GREEDY
from support.engines import Engines

from nnterp_vllm_core.testing.checkpoints import SIZES, tiny

DEEP = {**SIZES, "num_hidden_layers": 80, "hidden_size": 32, "intermediate_size": 32}


@pytest.fixture(scope="session")
def deep(checkpoints: dict[str, Path], engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A running model of 80 layers with one head each."""
    sizes = {**DEEP, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32}
    checkpoints["deep"] = tiny("llama", tmp_path_factory.mktemp("deep") / "deep", **sizes)
    return engines


@contextmanager
def shipped(model: Any) -> Iterator[list[int]]:
    """The size of each request's block on its way to the engine, in bytes."""
    found: list[int] = []
    generate = model.vllm_entrypoint.generate

    def measured(prompts: Any, sampling_params: Any, **kwargs: Any) -> Any:
        found.extend(len(one.extra_args["nnsight_mediator"]) for one in sampling_params)
        return generate(prompts, sampling_params=sampling_params, **kwargs)

    model.vllm_entrypoint.generate = measured
    try:
        yield found
    finally:
        model.vllm_entrypoint.generate = generate


def test_a_request_on_eighty_layers_ships_less_than_a_kilobyte(deep: Engines, prompt: str) -> None:
    model = deep.get("deep")
    i = 40
    with shipped(model) as sizes:
        with model.trace(prompt, **GREEDY):
            stream = model.layers[i].layer_output.save()
        with model.trace(**GREEDY) as tracer:
            for _ in range(3):
                with tracer.invoke(prompt):
                    model.layers[i].layer_output[:, -1] *= 0.5
                    logits = model.logits.save()
    assert stream.shape[-1] == 32
    assert len(logits) == 3
    assert len(sizes) == 4
    assert max(sizes) < 1000


def test_an_all_layers_loop_ships_the_same_however_often_it_runs(deep: Engines, prompt: str) -> None:
    model = deep.get("deep")
    with shipped(model) as sizes:
        for _ in range(4):
            with model.trace(prompt, **GREEDY):
                streams = nnsight.save([])
                for block in model.layers:
                    streams.append(block.layer_output)
            assert len(streams) == 80
    assert len(set(sizes)) == 1
    assert sizes[0] < 1000


def test_the_blocks_own_data_is_shipped_and_its_results_are_not(deep: Engines, prompt: str) -> None:
    model = deep.get("deep")
    vector = torch.ones(32)
    logits = torch.zeros(1_000_000)  # the name's value from before, which the block binds anew
    unused = torch.zeros(1_000_000)
    with shipped(model) as sizes, model.trace(prompt, **GREEDY):
        stream = model.layers[3].layer_output
        stream += vector.to(stream.device)
        logits = model.logits.save()
    assert logits.shape == (1, 1, 512)
    assert vector.nbytes < sizes[0] < 3000
    del unused


def test_an_error_on_the_way_shows_the_users_own_line(deep: Engines, prompt: str) -> None:
    model = deep.get("deep")
    with pytest.raises(RuntimeError) as caught:
        with model.trace(prompt, **GREEDY):
            model.layers[3].layer_output.save()
            missing_name + 1  # noqa: F821
    message = str(caught.value)
    assert message.splitlines()[0].startswith("NameError: name 'missing_name' is not defined")
    assert "missing_name + 1" in message
