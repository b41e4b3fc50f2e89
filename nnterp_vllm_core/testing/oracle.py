"""What transformers computes, by plain PyTorch hooks and transformers' own records: the independent side of the suite.

Nothing here passes through nnsight or through a view of ours, so that the two engines cannot agree on one mistake. Of the
family it takes only where the blocks are, how the stream leaves them and what the last norm is called; everything that
it reports comes from ``output_hidden_states``, ``output_attentions``, the model's own logits and the arguments and the
result of the model's own eager attention function.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import nn

from ..family import Implementation, Stream
from ..places import module_at

#: Recording attention functions are registered in the reference process under this name and a number, one each oracle.
_RECORDING = "nnterp_vllm_recording"
_numbers = count()


class Oracle:
    """One checkpoint under transformers in float32, without this library's engines.

    Args:
        folder: The checkpoint.
        declared: The family's transformers implementation.
        attention: transformers' attention implementation; another than ``"eager"`` records no interior and no pattern.
    """

    def __init__(self, folder: str, declared: Implementation, attention: str = "eager") -> None:
        self.declared = declared
        self.model = load(folder, attention)
        self.config = self.model.config.get_text_config()
        self.blocks: list[nn.Module] = list(module_at(self.model, declared.names["layers"]))
        self.home = {part: index for index, block in enumerate(self.blocks) for part in block.modules()}
        self.seen: dict[str, torch.Tensor] = {}
        self.eager = attention == "eager"
        source = sys.modules[declared.source]
        if self.eager and hasattr(source, "ALL_ATTENTION_FUNCTIONS") and hasattr(source, "eager_attention_forward"):
            self._record_interior()

    def _record_interior(self) -> None:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, eager_mask

        name = f"{_RECORDING}_{next(_numbers)}"
        AttentionInterface.register(name, self._recording)
        AttentionMaskInterface.register(name, eager_mask)
        self.model.set_attn_implementation(name)

    def _recording(self, module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        """The eager function that stands beside the attention class, with its arguments and its result written down."""
        own = sys.modules[type(module).__module__].eager_attention_forward
        output, pattern = own(module, query, key, value, mask, **options)
        here = f"layers.{self.home[module]}.self_attn"
        self.seen[f"{here}.attention_queries"] = query.detach().clone()
        self.seen[f"{here}.attention_keys"] = key.detach().clone()
        self.seen[f"{here}.attention_values"] = value.detach().clone()
        self.seen[f"{here}.attention_head_outputs"] = output.detach().clone()
        return output, pattern

    @torch.no_grad()
    def values(self, ids: Sequence[int], steer: tuple[int, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
        """Values of one prefill by key, ``layers.2.layer_output``.

        Args:
            ids: Token ids.
            steer: A layer and a vector that its hook adds to the stream that leaves it.
        """
        self.seen = {}
        with self._hooked(steer):
            out = self.model(
                torch.tensor([list(ids)]),
                use_cache=False,
                output_hidden_states=True,
                output_attentions=self.eager,
            )
        for index, stream in enumerate(out.hidden_states[:-1]):
            self.seen[f"layers.{index}.layer_input"] = stream
            if index:
                self.seen[f"layers.{index - 1}.layer_output"] = stream
        # The record ends with the normed stream; what enters the norm is the stream itself.
        last = f"layers.{len(self.blocks) - 1}.layer_output"
        self.seen[last] = self.seen.pop("last stream")
        for index, pattern in enumerate(out.attentions or ()):
            if pattern is not None:
                self.seen[f"layers.{index}.self_attn.attention_probabilities"] = pattern
        self.seen["logits"] = out.logits[:, -1:]
        self.seen["next_token_probs"] = out.logits[:, -1].softmax(-1)
        return self.seen

    @torch.no_grad()
    def greedy(self, ids: Sequence[int], steps: int) -> list[int]:
        """The ids that greedy decoding appends, each from a whole forward without a cache."""
        row = list(ids)
        for _ in range(steps):
            row.append(int(self.model(torch.tensor([row]), use_cache=False).logits[0, -1].argmax()))
        return row[len(ids) :]

    @contextmanager
    def _hooked(self, steer: tuple[int, torch.Tensor] | None) -> Iterator[None]:
        handles = [part.register_forward_hook(self._contribution, with_kwargs=True) for part in self.home]
        if steer is not None:  # first, so that the other hooks see what it adds
            handles.append(self.blocks[steer[0]].register_forward_hook(self._adding(steer[1])))
        norm = module_at(self.model, self.declared.names["norm"])
        if norm is not None:
            handles.append(norm.register_forward_pre_hook(self._entering_norm))
        else:  # a model without a last norm may still project the stream before it records it
            handles.append(self.blocks[-1].register_forward_hook(self._leaving))
        embeddings = self.model.get_input_embeddings()
        handles.append(embeddings.register_forward_hook(self._embedded))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering_norm(self, _: nn.Module, args: Any) -> None:
        self.seen["last stream"] = args[0].detach().clone()

    def _leaving(self, _: nn.Module, __: Any, output: Any) -> None:
        stream = self.declared.stream
        assert isinstance(stream, Stream)
        leaving = output if stream.leaves is None or isinstance(output, torch.Tensor) else output[stream.leaves]
        self.seen["last stream"] = leaving.detach().clone()

    def _embedded(self, _: nn.Module, __: Any, output: torch.Tensor) -> None:
        self.seen["token_embeddings"] = output.detach().clone()

    def _adding(self, vector: torch.Tensor) -> Any:
        stream = self.declared.stream
        assert isinstance(stream, Stream)

        def hook(_: nn.Module, __: Any, output: Any) -> Any:
            if stream.leaves is None or isinstance(output, torch.Tensor):
                return output + vector
            return (*output[: stream.leaves], output[stream.leaves] + vector, *output[stream.leaves + 1 :])

        return hook

    def _contribution(self, part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Write down what may be attention's contribution: what the module returns beside a pattern, and any norm of it.

        A module that returns a pattern, ``[batch, heads, query, key]``, is the attention, whatever it is called.
        """
        here = f"layers.{self.home[part]}.self_attn.attention_output"
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], torch.Tensor) and output[1].ndim == 4:
            self.seen.setdefault(f"{here} candidate 0", output[0].detach().clone())
            return
        first = f"{here} candidate 0"
        if first in self.seen and isinstance(output, torch.Tensor):
            taken = args[0] if args else next(iter(kwargs.values()), None)
            raw = self.seen[first]
            if isinstance(taken, torch.Tensor) and taken.shape == raw.shape and torch.equal(taken, raw):
                number = sum(key.startswith(here) for key in self.seen)
                self.seen[f"{here} candidate {number}"] = output.detach().clone()


def load(folder: str, attention: str) -> Any:
    """A checkpoint's model in float32, a multimodal one too."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": attention}
    classes: list[Any] = [AutoModelForCausalLM, AutoModelForImageTextToText]
    multimodal = type(AutoConfig.from_pretrained(folder)) not in classes[0]._model_mapping
    return classes[multimodal].from_pretrained(folder, **options).eval()
