"""Standard values beside nnsight's native locations, and blocks that end in ways that are no `Exception`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.blocks import GREEDY
from support.engines import Engines

pytestmark = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")


@pytest.fixture
def model(name: str, engines: Engines) -> Any:
    return engines.get(name)


def test_a_value_is_read_afresh_after_a_native_assignment(model: Any, prompt: str) -> None:
    block, following = model.layers[1], model.layers[2]
    with model.trace(prompt, **GREEDY):
        before = block.layer_output.save()
        block.output = tuple(part * 0 for part in block.output)
        again = block.layer_output.save()
        block.layer_output = block.layer_output + 1
        entering = following.layer_input.save()
    assert before.abs().max() > 0
    assert torch.equal(again, torch.zeros_like(again))
    assert torch.equal(entering, torch.ones_like(entering))


def test_a_value_is_read_afresh_after_a_native_edit_in_place(model: Any, prompt: str) -> None:
    block, following = model.layers[1], model.layers[2]
    with model.trace(prompt, **GREEDY):
        block.layer_output  # noqa: B018  # what this read handed out is stale after the native edit
        hidden, residual = block.output
        hidden[:] = 0
        residual[:] = 0
        again = block.layer_output.clone().save()
        block.layer_output[:, 0] += 1
        entering = following.layer_input.save()
    assert torch.equal(again, torch.zeros_like(again))
    assert torch.equal(entering[:, 0], torch.ones_like(entering[:, 0]))
    assert torch.equal(entering[:, 1:], torch.zeros_like(entering[:, 1:]))


def test_an_edit_of_what_a_native_read_made_stale_is_an_error(model: Any, prompt: str) -> None:
    block = model.layers[1]
    with pytest.raises(RuntimeError, match="was edited after its native location"):
        with model.trace(prompt, **GREEDY):
            stream = block.layer_output
            block.output[0][:] = 0
            stream[:, 0] += 1


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exit_in_a_block_ends_its_request_alone(model: Any, prompt: str, raised: type[BaseException]) -> None:
    with model.trace(prompt, **GREEDY):
        clean = model.logits.save()
    with pytest.raises(RuntimeError, match=raised.__name__):
        with model.trace(prompt, **GREEDY):
            model.layers[0].layer_output.save()
            raise raised("enough")
    with model.trace(prompt, **GREEDY):
        after = model.logits.save()
    assert torch.equal(after, clean)


def test_a_container_that_a_block_fills_unsaved_is_a_warning(model: Any, prompt: str) -> None:
    found: list[Any] = []
    with pytest.warns(UserWarning, match=r"found = nnsight.save\(list\(\)\)"):
        with model.trace(prompt, **GREEDY):
            found.append(model.layers[0].layer_output)
    assert found == []


def test_a_misspelt_value_names_the_nearest(model: Any, prompt: str) -> None:
    with pytest.raises(RuntimeError, match="Did you mean 'attention_probabilities'"):
        with model.trace(prompt, **GREEDY):
            model.layers[0].self_attn.attention_probs.save()


def test_a_steering_vector_of_another_width_is_refused_by_name(model: Any, prompt: str) -> None:
    vector = torch.zeros(7)
    with pytest.raises(RuntimeError, match=r"the steering vector is \(7,\)"):
        with model.trace(prompt, **GREEDY):
            model.steer(1, vector)
