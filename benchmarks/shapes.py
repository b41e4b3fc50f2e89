"""Models of a given shape with made-up weights: a config and a tokenizer, no checkpoint to download."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Shape:
    """A Llama of this size. ``name`` is what the table says."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int = 512
    context: int = 2048

    def cache_bytes(self, sequences: int, length: int) -> int:
        """What vLLM's cache of so many sequences takes in bfloat16, and one in eight more."""
        position = 2 * 2 * self.layers * self.kv_heads * (self.hidden // self.heads)
        return position * sequences * length * 9 // 8


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("4x128", 4, 128, 4, 2, 256),
        Shape("24x128", 24, 128, 4, 2, 256),
        Shape("80x128", 80, 128, 4, 2, 256),
        Shape("24x896", 24, 896, 14, 2, 4864, 32000),
        Shape("32x4096", 32, 4096, 32, 8, 14336, 32000),
    )
}


def write(shape: Shape, folder: Path) -> Path:
    """A folder that vLLM loads with ``load_format="dummy"``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    path = folder / shape.name
    path.mkdir(parents=True, exist_ok=True)
    if (path / "shape.json").is_file():
        return path
    LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.hidden // shape.heads,
        max_position_embeddings=shape.context,
        bos_token_id=0,
        eos_token_id=0,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(path)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["a benchmark needs words, not meaning"] * 4, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(path)
    (path / "shape.json").write_text(json.dumps(asdict(shape)))
    return path


def prompts(count: int, tokens: int) -> list[list[int]]:
    """``count`` prompts of ``tokens`` ids each, all different."""
    return [[1 + (7 * row + 3 * position) % 380 for position in range(tokens)] for row in range(count)]
