"""Scores and pattern follow each rule of a kernel, one rule at a time, against sums written out in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from nnterp_vllm_core.attention import Kernel, probabilities, scores

SEQ, HEADS, KV_HEADS, DIM = 6, 4, 2, 8
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "softcap": {"softcap": 2.0},
    "window": {"window": 3},
    "slopes": {"slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -1.0, 3.0])},
    "all": {
        "softcap": 2.0,
        "window": 3,
        "slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]),
        "sinks": torch.tensor([0.0, 1.0, -1.0, 3.0]),
    },
}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(1, HEADS, SEQ, DIM, generator=generator)
    keys = torch.randn(1, KV_HEADS, SEQ, DIM, generator=generator)
    return queries, keys


def written_out(queries: torch.Tensor, keys: torch.Tensor, kernel: Kernel) -> list[list[list[float]]]:
    """The pattern by its definition: no masks, no tensors, only the keys that a query sees."""
    pattern = [[[0.0] * SEQ for _ in range(SEQ)] for _ in range(HEADS)]
    for head in range(HEADS):
        for query in range(SEQ):
            first = 0 if kernel.window is None else max(0, query - kernel.window + 1)
            seen = {}
            for key in range(first, query + 1):
                pairs = zip(queries[0, head, query].tolist(), keys[0, head // 2, key].tolist(), strict=True)
                score = sum(a * b for a, b in pairs) * kernel.scale
                if kernel.softcap is not None:
                    score = kernel.softcap * math.tanh(score / kernel.softcap)
                if kernel.slopes is not None:
                    score += kernel.slopes[head].item() * key
                seen[key] = score
            sink = 0.0 if kernel.sinks is None else math.exp(kernel.sinks[head].item())
            total = sum(math.exp(score) for score in seen.values()) + sink
            for key, score in seen.items():
                pattern[head][query][key] = math.exp(score) / total
    return pattern


@pytest.mark.parametrize("rule", RULES)
def test_the_pattern_is_the_softmax_over_the_keys_that_a_query_sees(rule: str) -> None:
    queries, keys = inputs()
    kernel = Kernel(head_dim=DIM, scale=0.3, **RULES[rule])
    expected = torch.tensor(written_out(queries, keys, kernel), dtype=torch.float64)
    # A float32 softmax of scores below 10: 1e-6 is eight units in the last place of a probability of one.
    assert (probabilities(queries, keys, kernel)[0].double() - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ("sinks", "all")])
def test_the_softmax_of_the_scores_is_the_pattern(rule: str) -> None:
    queries, keys = inputs()
    kernel = Kernel(head_dim=DIM, scale=0.3, **RULES[rule])
    assert torch.equal(scores(queries, keys, kernel).softmax(-1), probabilities(queries, keys, kernel))


def test_a_sink_takes_its_share_of_each_row() -> None:
    queries, keys = inputs()
    rows = probabilities(queries, keys, Kernel(head_dim=DIM, scale=0.3, **RULES["sinks"])).sum(-1)
    assert (rows < 1).all()
    assert (probabilities(queries, keys, Kernel(head_dim=DIM, scale=0.3)).sum(-1) - 1).abs().max() <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scores_and_pattern_keep_the_dtype_of_the_queries(dtype: torch.dtype) -> None:
    queries, keys = (one.to(dtype) for one in inputs())
    kernel = Kernel(head_dim=DIM, scale=0.3, **RULES["all"])
    assert scores(queries, keys, kernel).dtype == probabilities(queries, keys, kernel).dtype == dtype
    assert torch.isfinite(scores(queries, keys, kernel)).all()
