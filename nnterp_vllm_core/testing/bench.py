"""What the reference process does on request: make a checkpoint, run transformers on it, compare our engine with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..family import Family
from ..protocol import INTERIOR, VALUES
from .blocks import Runner
from .compare import FLOAT32, Finding, differences, gap
from .oracle import Oracle

#: What the oracle knows better than our own engine does: everything that it reports under a value's key, except the
#: embeddings, which some models scale after their module.
_NOT_ITS_OWN = "token_embeddings"


class Bench:
    """The open checkpoints, each under the oracle and under `StandardizedTransformer`."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._open: dict[str, tuple[Oracle, Runner]] = {}

    def make(self, folder: str, model_type: str, config: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Write a checkpoint; see `checkpoints.tiny`."""
        from .checkpoints import tiny

        tiny(model_type, folder, **options, **config)

    def open(self, folder: str, family: str | Family | None, attention: str) -> dict[str, Any]:
        """Load a checkpoint twice. Returns what the modules say about sizes."""
        from .. import StandardizedTransformer

        torch.manual_seed(0)
        model = StandardizedTransformer(folder, family=family, dispatch=True, dtype=torch.float32)
        declared: Family = model.family
        assert declared.transformers is not None
        oracle = Oracle(folder, declared.transformers, attention)
        self._open[folder] = oracle, Runner(model=model, transformers=True)
        vocabulary = oracle.model.get_output_embeddings().weight.shape[0]
        return {"num_layers": len(oracle.blocks), "vocab_size": vocabulary, "hidden_size": model.hidden_size}

    def close(self) -> None:
        """Forget every checkpoint."""
        self._open.clear()

    def values(self, folder: str, ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Every value that transformers gives: the oracle's, and our own engine's where the oracle has none."""
        oracle, runner = self._open[folder]
        own = runner.read(ids)
        independent = {
            key: value
            for key, value in oracle.values(ids).items()
            if key.rpartition(".")[2] in VALUES and key != _NOT_ITS_OWN
        }
        return {**own, **independent}

    def unavailable(self, folder: str) -> dict[str, str]:
        """Paths that our transformers engine does not serve, with the reasons."""
        return dict(self._open[folder][1].model.support().unavailable)

    def edited(self, folder: str, ids: Sequence[int], keys: Sequence[str]) -> dict[str, dict[str, torch.Tensor]]:
        """The effect of an edit of each of these values, where our engine serves it."""
        runner = self._open[folder][1]
        served = {place.key for place in runner.places() if place.writable}
        return {key: runner.edited(ids, key) for key in keys if key in served}

    def steered(self, folder: str, ids: Sequence[int], layer: int, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every value of a run whose stream a plain hook adds ``vector`` to, after ``layer``."""
        return self._open[folder][0].values(ids, steer=(layer, vector))

    def greedy(self, folder: str, ids: Sequence[int], steps: int) -> list[int]:
        """What greedy decoding appends."""
        return self._open[folder][0].greedy(ids, steps)

    # --- our transformers engine against the oracle -------------------------------------------------------------------

    def parity(self, folder: str, ids: Sequence[int], identity: bool) -> list[Finding]:
        """What our transformers engine serves otherwise than transformers records it."""
        oracle, runner = self._open[folder]
        own, independent = runner.read(ids), oracle.values(ids)
        findings = differences(own, {key: value for key, value in independent.items() if key != _NOT_ITS_OWN}, {})
        findings += _embeddings(own, independent)
        expected = own["layers.0.layer_input"].shape
        for key, value in own.items():
            if VALUES[key.rpartition(".")[2]].axes == ("batch", "seq", "hidden") and value.shape != expected:
                findings.append(Finding(key=key, observed=f"shape {tuple(value.shape)}", allowed=f"{tuple(expected)}"))
        for index in range(len(oracle.blocks)):
            findings += _contributions(index, own, independent, oracle.config, identity)
        must = {key.rpartition(".")[2] for key in independent if key.rpartition(".")[2] in VALUES}
        served = {key.rpartition(".")[2] for key in own}
        interior = set(INTERIOR)  # a family whose attention dispatches nowhere serves none, with a reason
        for name in sorted(must - served - interior):
            findings.append(Finding(key=name, observed="not served", allowed="served: transformers records it"))
        return findings

    def methods(self, folder: str, ids: Sequence[int], layer: int, vector: torch.Tensor) -> list[Finding]:
        """What ``project_on_vocab``, ``next_token_probs`` and ``steer`` get wrong on our transformers engine."""
        oracle, runner = self._open[folder]
        found = runner.projected(ids)
        expected = {"projected": found["logits"], "probabilities": found["logits"][:, -1].softmax(-1)}
        findings = differences({key: found[key] for key in expected}, expected, {})
        steered = runner.steered(ids, layer, vector, 1.0)
        reference = oracle.values(ids, steer=(layer, vector))
        last = f"layers.{len(oracle.blocks) - 1}.layer_output"
        return findings + differences(steered, {"stream": reference[last], "logits": reference["logits"]}, {})


def _embeddings(own: Mapping[str, torch.Tensor], independent: Mapping[str, torch.Tensor]) -> list[Finding]:
    """``token_embeddings`` against the embedding module's output, which a model may still scale or project."""
    ours, theirs = own["token_embeddings"], independent["token_embeddings"]
    if ours.shape != theirs.shape:
        return []  # projected to the stream's width
    observed = gap(ours, theirs * fitted(ours, theirs))
    if observed <= FLOAT32:
        return []
    return [Finding(key="token_embeddings", observed=f"{observed:.1e} from any multiple", allowed=f"{FLOAT32:.1e}")]


def fitted(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The factor by which the second comes nearest to the first."""
    return ((ours * theirs).sum() / (theirs * theirs).sum()).item()


def _contributions(
    index: int, own: Mapping[str, torch.Tensor], independent: Mapping[str, torch.Tensor], config: Any, identity: bool
) -> list[Finding]:
    """Attention's contribution against what the attention module returned, and both against the stream.

    What the module returned, less the stream where the module adds it, or a norm of that, times 1 or one of the config's
    own numbers: one of these is what the block adds. The rest of the way to the next stream is the feed-forward part's.
    """
    here = f"layers.{index}"
    name = f"{here}.self_attn.attention_output"
    if name not in own:
        return []
    ours, entering = own[name], independent[f"{here}.layer_input"]
    raw = [value for key, value in independent.items() if key.startswith(f"{name} candidate")]
    candidates = [*raw, *(value - entering for value in raw[:1])]
    numbers = [1.0, *(float(it) for it in config.to_dict().values() if isinstance(it, float))]
    nearest = min((gap(ours, one * factor) for one in candidates for factor in numbers), default=None)
    findings = []
    if nearest is not None and nearest > FLOAT32:
        observed = f"{nearest:.1e} from what the attention module returned and from any norm of it"
        findings.append(Finding(key=name, observed=observed, allowed=f"{FLOAT32:.1e}"))
    if identity:
        leaving = independent[f"{here}.layer_output"]
        observed_gap = gap(entering + ours + own[f"{here}.mlp.mlp_output"], leaving)
        if observed_gap > FLOAT32:
            findings.append(
                Finding(key=f"{here}: input + contributions", observed=f"{observed_gap:.1e}", allowed=f"{FLOAT32:.1e}")
            )
    return findings
