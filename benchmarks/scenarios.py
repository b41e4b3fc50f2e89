"""What is timed. Each scenario is a function of a loaded model and a list of prompts; `plain` is what all are divided by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nnsight
import timing

Prompts = list[list[int]]


def plain(model: Any, prompts: Prompts, tokens: int = 1) -> None:
    """The engine itself: vLLM's ``generate``, no block on any request."""
    timing.generate(model.vllm_entrypoint, prompts, tokens)


def nothing(model: Any, prompts: Prompts) -> None:
    """A block that reads nothing: what a trace and its requests cost by themselves."""
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                one = 1  # noqa: F841


def one_value(model: Any, prompts: Prompts) -> None:
    """One value of one layer: the stream that leaves the middle block, last position."""
    middle = model.num_layers // 2
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                last = model.layers[middle].layer_output[:, -1].save()  # noqa: F841


def every_layer_last(model: Any, prompts: Prompts) -> None:
    """Every layer's last token."""
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                states = nnsight.save([])
                for layer in model.layers:
                    states.append(layer.layer_output[:, -1])


def every_layer_all(model: Any, prompts: Prompts) -> None:
    """All positions of every layer."""
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                states = nnsight.save([])
                for layer in model.layers:
                    states.append(layer.layer_output)


def edit_one_layer(model: Any, prompts: Prompts) -> None:
    """An edit at one layer, nothing saved but the logits' argmax."""
    middle = model.num_layers // 2
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                model.layers[middle].layer_output[:, -1] *= 0.5
                token = model.logits.argmax(-1).save()  # noqa: F841


def pattern_one_layer(model: Any, prompts: Prompts) -> None:
    """The attention pattern of one layer."""
    middle = model.num_layers // 2
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                pattern = model.layers[middle].self_attn.attention_probabilities.save()  # noqa: F841


def decode_one_read(model: Any, prompts: Prompts, tokens: int = 64) -> None:
    """A read at one layer on each of 64 generated tokens."""
    middle = model.num_layers // 2
    with model.trace(temperature=0.0, max_tokens=tokens, ignore_eos=True) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                states = nnsight.save([])
                for _ in tracer.iter[:tokens]:
                    states.append(model.layers[middle].layer_output[:, -1])


SCENARIOS: dict[str, tuple[Callable[..., None], int]] = {
    "a block that does nothing": (nothing, 1),
    "one value of one layer": (one_value, 1),
    "every layer, last token": (every_layer_last, 1),
    "every layer, all positions": (every_layer_all, 1),
    "an edit at one layer": (edit_one_layer, 1),
    "pattern of one layer": (pattern_one_layer, 1),
    "64 decode steps, one read each": (decode_one_read, 64),
}


def native_one_bound_outside(model: Any, prompts: Prompts) -> None:
    """nnsight's own locations: one layer's pair, its envoy bound outside the block."""
    block = model.model.layers[len(model.model.layers) // 2]
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                last = (block.output[0] + block.output[1])[-1].clone().save()  # noqa: F841


def native_one(model: Any, prompts: Prompts) -> None:
    """The same, reached through the model inside the block."""
    middle = len(model.model.layers) // 2
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                out = model.model.layers[middle].output
                last = (out[0] + out[1])[-1].clone().save()  # noqa: F841


def native_every_layer(model: Any, prompts: Prompts) -> None:
    """Every layer's last token on nnsight's own locations."""
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                states = nnsight.save([])
                for layer in model.model.layers:
                    out = layer.output
                    states.append((out[0] + out[1])[-1].clone())


NATIVE: dict[str, Callable[..., None]] = {
    "one value of one layer (bound outside)": native_one_bound_outside,
    "one value of one layer": native_one,
    "every layer, last token": native_every_layer,
}
