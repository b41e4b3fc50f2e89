"""Small random checkpoints of any architecture, made without a network, that transformers and vLLM both load.

Random weights say more than pretrained ones about *where* a value is read: nothing is near zero, so a missing residual, a
wrong norm or a swapped head moves every number. The sizes are the smallest that vLLM's CPU attention takes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

#: Sizes in the spelling of most configs, to be passed on: ``tiny("qwen2", folder, **SIZES)``. vLLM's CPU attention kernel
#: refuses heads narrower than 32; two key/value heads for four heads make a mix-up of the two visible.
SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
#: The same in GPT-2's spelling.
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "n_embd": 128,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

_END = "<|endoftext|>"
_TEXT = ("The Eiffel Tower is in the city of Paris", "The capital of Japan is Tokyo", "hello world")


def tiny(
    model_type: str,
    folder: str | Path,
    *,
    keep: Collection[str] = (),
    fill: Mapping[str, float] | None = None,
    scale: Mapping[str, float] | None = None,
    raw: Mapping[str, Any] | None = None,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write a float32 checkpoint with random weights and a byte-level tokenizer.

    Args:
        model_type: As ``config.json`` spells it; transformers must know it.
        folder: Where to write; made if it is missing.
        keep: Substrings of parameter names that keep their initial value plus noise although they are matrices.
        fill: Substrings of parameter names, and the one number that such a parameter holds.
        scale: Substrings of parameter names, and a factor on their noise.
        raw: Entries written into config.json as they stand, for keys that transformers' config class drops.
        seed: Of the random weights.
        **config: Everything the config is to say: ``**SIZES`` and what the architecture adds.

    Returns:
        ``folder``, as a path.

    Raises:
        ValueError: transformers knows no such ``model_type``.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    folder = Path(folder)
    torch.manual_seed(seed)
    settings = AutoConfig.for_model(model_type, **config)
    classes: list[Any] = [AutoModelForCausalLM, AutoModelForImageTextToText]  # transformers leaves them untyped
    multimodal = type(settings) not in classes[0]._model_mapping
    model = classes[multimodal].from_config(settings, attn_implementation="eager", dtype=torch.float32).eval()
    randomize(model, keep=keep, seed=seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for part, number in (fill or {}).items():
                if part in name:
                    parameter.fill_(number)
            for part, factor in (scale or {}).items():
                if part in name:
                    parameter.mul_(factor)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer(folder, vocabulary=int(settings.get_text_config().vocab_size))
    if raw:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **raw}, indent=1))
    return folder


def randomize(model: Any, *, keep: Collection[str] = (), seed: int = 0, scale: float = 0.1) -> None:
    """Replace a model's weights by noise of standard deviation ``scale``; one-dimensional ones have it added instead.

    A norm's weights stay near one (or near zero, where the architecture adds one itself), so the stream keeps its size
    through any number of layers.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * scale
            if parameter.dim() > 1 and not any(part in name for part in keep):
                parameter.copy_(noise)
            else:
                parameter.add_(noise)


def tokenizer(folder: str | Path, vocabulary: int = 512) -> None:
    """Write a byte-level BPE tokenizer: it takes any text and has at most ``vocabulary`` tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([line for line in _TEXT for _ in range(10)], trainer)
    wrap: Any = PreTrainedTokenizerFast
    wrap(tokenizer_object=made, eos_token=_END, bos_token=_END).save_pretrained(folder)
