"""What is said to be served is served, and what is said to be unavailable raises that very reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.blocks import GREEDY, at, logits_of

from nnterp_vllm_core.protocol import VALUES

walk = pytest.mark.parametrize("name", ["qwen2", "llama", "gpt2", "smollm2"], indirect=True, scope="session")


@walk
def test_every_value_is_listed_and_does_what_the_list_says(model: Any, prompt: str) -> None:
    clean = logits_of(model, prompt)
    support = model.support()
    assert list(support) == [value.path for value in VALUES.values()]
    assert set(support.served) | set(support.unavailable) == set(support)
    for path, status in support.items():
        places = [path.replace("*", str(index)) for index in (0, model.num_layers - 1)] if "*" in path else [path]
        for host, value in (at(model, place) for place in places):
            if status.startswith("served"):
                with model.trace(prompt, **GREEDY):
                    shape = tuple(getattr(host, value).shape if value != "input_size" else getattr(host, value)).save()
                assert shape[0] == 1
                assert len(shape) == (2 if value == "input_size" else len(VALUES[value].axes))
            else:
                reason = status.removeprefix("unavailable: ")
                with pytest.raises(RuntimeError) as caught:
                    with model.trace(prompt, **GREEDY):
                        getattr(host, value).save()
                first = str(caught.value).splitlines()[0]
                assert first.startswith("Unavailable: ")
                assert first.endswith(f"{value} is unavailable: {reason}")
    assert torch.equal(logits_of(model, prompt), clean)


def test_the_axes_of_the_list_are_the_axes_that_are_served(model: Any, prompt: str) -> None:
    seq = len(model.tokenizer(prompt)["input_ids"])
    sizes = {
        "batch": 1,
        "1": 1,
        "seq": seq,
        "query": seq,
        "key": seq,
        "hidden": model.hidden_size,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab": model.vocab_size,
    }
    for path in model.support().served:
        host, value = at(model, path.replace("*", "1"))
        if value == "input_size":
            continue
        with model.trace(prompt, **GREEDY):
            shape = tuple(getattr(host, value).shape).save()
        assert shape == tuple(sizes[axis] for axis in VALUES[value].axes), value


def test_the_list_prints_one_line_a_value_and_needs_no_run(model: Any) -> None:
    lines = str(model.support()).splitlines()
    assert len(lines) == len(VALUES)
    assert "served (read-only; prefill only)" in next(line for line in lines if "attention_probabilities" in line)
    assert "unavailable: a request is one unpadded sequence" in next(line for line in lines if "attention_mask" in line)


def test_an_unavailable_value_cannot_be_assigned_either(model: Any, prompt: str) -> None:
    with pytest.raises(RuntimeError, match=r"^Unavailable: .*attention_mask is unavailable: a request is one unpadded"):
        with model.trace(prompt, **GREEDY):
            model.attention_mask = torch.ones(1)
