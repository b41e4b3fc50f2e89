"""A container saved above several invokes ends up as if one object had been there, on both engines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch
from support.blocks import FLOAT32, GREEDY
from support.engines import Engines
from support.oracle import gap

from nnterp_vllm_core import NnterpVLLMError

TEXTS = ("The Eiffel Tower", "The capital of Japan is", "hello world", "The city of Paris")
Run = Callable[[Any], dict[str, torch.Tensor]]


def appended(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save([])
        for text in TEXTS:
            with tracer.invoke(text):
                out.append(model.logits[:, -1])
    return {f"{index}": one for index, one in enumerate(out)}


def appended_to_what_is_there(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save([torch.ones(2)])
        for text in TEXTS:
            with tracer.invoke(text):
                out.append(model.logits[:, -1])
    return {f"{index}": one for index, one in enumerate(out)}


def a_number_of_items_that_differs(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save([])
        for count, text in enumerate(TEXTS):
            with tracer.invoke(text):
                for layer in range(count):
                    # transformers computes a layer for all rows before the next one, vLLM's requests come one by one.
                    out.append((f"invoke {count}, layer {layer}", model.layers[layer].layer_output[:, -1]))
    return dict(out)


def slots(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save([None] * len(TEXTS))
        for slot, text in reversed(list(enumerate(TEXTS))):
            with tracer.invoke(text):
                out[slot] = model.logits[:, -1]
    return {f"{index}": one for index, one in enumerate(out)}


def keys(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save({})
        for text in TEXTS:
            with tracer.invoke(text):
                out[text] = model.logits[:, -1]
    return dict(out)


def lists_in_a_dict(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save({"streams": [], "logits": []})
        for text in TEXTS[:3]:
            with tracer.invoke(text):
                out["streams"].append(model.layers[2].layer_output[:, -1])
                out["logits"].append(model.logits[:, -1])
    return {f"{key} {index}": one for key, found in out.items() for index, one in enumerate(found)}


def lists_that_a_defaultdict_makes(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save(defaultdict(list))
        for text in TEXTS[:3]:
            with tracer.invoke(text):
                out["logits"].append(model.logits[:, -1])
    return {f"{key} {index}": one for key, found in out.items() for index, one in enumerate(found)}


def rows_of_a_tensor(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save(torch.zeros(len(TEXTS), model.vocab_size))
        for row, text in enumerate(TEXTS):
            with tracer.invoke(text):
                out[row] = model.logits[0, -1]
    return {"rows": out}


def a_set_of_tokens(model: Any) -> dict[str, torch.Tensor]:
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save(set())
        for text in TEXTS:
            with tracer.invoke(text):
                out.add(model.logits[:, -1].argmax().item())
    return {"tokens": torch.tensor(sorted(out), dtype=torch.float32)}


RUNS: tuple[Run, ...] = (
    appended,
    appended_to_what_is_there,
    a_number_of_items_that_differs,
    slots,
    keys,
    lists_in_a_dict,
    lists_that_a_defaultdict_makes,
    rows_of_a_tensor,
    a_set_of_tokens,
)


@pytest.fixture(scope="module")
def reference(checkpoints: dict[str, Path]) -> Any:
    """The same checkpoint on transformers, where the invokes share the one object."""
    from nnterp_vllm_core import StandardizedTransformer

    return StandardizedTransformer(str(checkpoints["qwen2"]), dispatch=True, dtype=torch.float32)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
def test_what_every_invoke_puts_in_is_there(run: Run, engines: Engines, reference: Any) -> None:
    ours = run(engines.get("qwen2"))
    theirs = run(reference)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert gap(value, theirs[key].detach()) <= FLOAT32, key


def test_what_one_invoke_appends_stays_together_on_vllm(engines: Engines) -> None:
    model = engines.get("qwen2")
    with model.trace(**GREEDY) as tracer:
        out = nnsight.save([])
        for index, text in enumerate(TEXTS):
            with tracer.invoke(text):
                for layer in model.layers[:2]:
                    out.append((index, layer.layer_output.shape[-1]))
    assert out == [(index, 128) for index in range(len(TEXTS)) for _ in range(2)]


def test_one_invoke_is_left_as_it_is(engines: Engines) -> None:
    model = engines.get("qwen2")
    with model.trace(TEXTS[0], **GREEDY):
        out = nnsight.save([0])
        out.clear()
        out.append(model.logits.shape[-1])
    assert out == [512]


def test_a_value_that_each_invoke_saves_for_itself_stays_a_list_of_values(engines: Engines) -> None:
    model = engines.get("qwen2")
    with model.trace(**GREEDY) as tracer:
        for text in TEXTS:
            with tracer.invoke(text):
                top = model.logits.argmax(-1).save()
    assert len(top) == len(TEXTS)


def test_adding_up_in_one_tensor_is_an_error_with_the_way_out(engines: Engines) -> None:
    model = engines.get("qwen2")
    with pytest.raises(NnterpVLLMError, match=r"^total: several requests changed the same elements.*Append to a saved list"):
        with model.trace(**GREEDY) as tracer:
            total = nnsight.save(torch.zeros(model.hidden_size))
            for text in TEXTS:
                with tracer.invoke(text):
                    total += model.layers[1].layer_output[0, -1].to(total.device)


def test_taking_items_out_is_an_error_with_the_way_out(engines: Engines) -> None:
    model = engines.get("qwen2")
    with pytest.raises(NnterpVLLMError, match=r"^todo: a request took items out.*take items out after the trace"):
        with model.trace(**GREEDY) as tracer:
            todo = nnsight.save([1, 2, 3])
            for text in TEXTS:
                with tracer.invoke(text):
                    todo.pop()
                    model.logits.save()
