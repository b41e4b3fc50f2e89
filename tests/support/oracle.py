"""What transformers computes, read and edited with plain PyTorch hooks: the independent side of every comparison.

Nothing of the library under test is used. Values are keyed as a block would write them, ``layers.2.mlp.mlp_output``, and
have the standard axes; an edit is a function from a value to its replacement under the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

Edit = Callable[[torch.Tensor], torch.Tensor]


class Oracle:
    """One checkpoint under transformers: float32, eager attention.

    Attributes:
        model: The causal language model.
        tokenizer: Its tokenizer.
        heads, kv_heads, head_dim: Sizes of one attention layer.
    """

    def __init__(self, checkpoint: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        config = self.model.config
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.gpt2 = config.model_type == "gpt2"

    def __call__(self, text: str | list[int], edits: Mapping[str, Edit] | None = None) -> dict[str, torch.Tensor]:
        """Every standard value of one prefill, under edits.

        ``attention_queries`` and ``attention_keys`` are edited before the rotary embedding is applied, so an edit of them
        must commute with it: scale whole heads.
        """
        ids = torch.tensor([self.tokenizer(text)["input_ids"] if isinstance(text, str) else text])
        seen: dict[str, torch.Tensor] = {"input_ids": ids}
        with self._hooked(seen, dict(edits or {})), torch.no_grad():
            logits = self.model(ids, use_cache=False).logits[:, -1:]
        seen["logits"] = logits
        seen["next_token_probs"] = logits[:, -1].softmax(-1)
        return seen

    @contextmanager
    def _hooked(self, seen: dict[str, torch.Tensor], edits: dict[str, Edit]) -> Iterator[None]:
        handles: list[Any] = []

        def value(key: str, tensor: torch.Tensor) -> torch.Tensor:
            if key in edits:
                tensor = edits[key](tensor.clone())
            seen[key] = tensor.detach().clone()
            return tensor

        def leaves(module: Any, key: str, shape: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
            """Read and edit what a module returns; the first element of a tuple."""

            def hook(_: Any, __: Any, output: Any) -> Any:
                raw = output[0] if isinstance(output, tuple) else output
                new = value(key, raw if shape is None else shape(raw))
                new = new if shape is None else unshape(new, raw)
                return (new, *output[1:]) if isinstance(output, tuple) else new

            handles.append(module.register_forward_hook(hook))

        def enters(module: Any, key: str, shape: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
            """Read and edit a module's first argument."""

            def hook(_: Any, args: Any, kwargs: Any) -> Any:
                name = next(iter(kwargs)) if not args else None
                raw = args[0] if name is None else kwargs[name]
                new = value(key, raw if shape is None else shape(raw))
                new = new if shape is None else new.reshape(raw.shape)
                return ((new, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: new})

            handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

        def split(rows: torch.Tensor) -> torch.Tensor:
            return rows.reshape(*rows.shape[:2], -1, self.head_dim).transpose(1, 2)

        def unshape(new: torch.Tensor, raw: torch.Tensor) -> torch.Tensor:
            return new.transpose(1, 2).reshape(raw.shape)

        def apart(rows: torch.Tensor) -> torch.Tensor:
            return rows.reshape(*rows.shape[:2], self.heads, self.head_dim)

        inner = self.model.transformer if self.gpt2 else self.model.model
        leaves(inner.wte if self.gpt2 else inner.embed_tokens, "token_embeddings")
        for index, block in enumerate(inner.h if self.gpt2 else inner.layers):
            here = f"layers.{index}"
            attention = block.attn if self.gpt2 else block.self_attn
            enters(block, f"{here}.layer_input")
            if self.gpt2:
                handles.append(
                    attention.c_attn.register_forward_hook(self._fused(f"{here}.self_attn", split, unshape, value))
                )
            else:
                for projection, name in (("q_proj", "queries"), ("k_proj", "keys"), ("v_proj", "values")):
                    leaves(getattr(attention, projection), f"{here}.self_attn.attention_{name}", split)
            enters(attention.c_proj if self.gpt2 else attention.o_proj, f"{here}.self_attn.attention_head_outputs", apart)
            handles.append(attention.register_forward_hook(self._pattern(f"{here}.self_attn", seen), with_kwargs=True))
            leaves(attention, f"{here}.self_attn.attention_output")
            leaves(block.mlp, f"{here}.mlp.mlp_output")
            leaves(block, f"{here}.layer_output")
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _fused(self, here: str, split: Any, unshape: Any, value: Any) -> Any:
        """GPT-2 computes queries, keys and values in one projection."""

        def hook(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            parts = output.chunk(3, dim=-1)
            names = ("queries", "keys", "values")
            return torch.cat(
                [
                    unshape(value(f"{here}.attention_{name}", split(part)), part)
                    for name, part in zip(names, parts, strict=True)
                ],
                dim=-1,
            )

        return hook

    def _pattern(self, here: str, seen: dict[str, torch.Tensor]) -> Any:
        """The pattern as eager attention returns it, and queries and keys turned by the rotary embedding."""

        def hook(_: Any, __: Any, kwargs: Any, output: Any) -> None:
            seen[f"{here}.attention_probabilities"] = output[1].detach().clone()
            if self.gpt2:
                return
            cos, sin = kwargs["position_embeddings"]
            for name in ("attention_queries", "attention_keys"):
                seen[f"{here}.{name}"] = rotated(seen[f"{here}.{name}"], cos, sin)

        return hook


def rotated(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of ``[batch, heads, seq, head_dim]``, the halves of a head as the pair's two parts."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos.unsqueeze(1) + torch.cat([-second, first], dim=-1) * sin.unsqueeze(1)


def gap(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, relative to the reference's largest magnitude."""
    ours, reference = ours.cpu(), reference.cpu()
    assert ours.shape == reference.shape, (tuple(ours.shape), tuple(reference.shape))
    return ((ours - reference).abs().max() / reference.abs().max()).item()


def same(ours: torch.Tensor, reference: torch.Tensor) -> bool:
    """Whether they are equal to the bit, wherever they are."""
    return torch.equal(ours.cpu(), reference.cpu())
