"""Read and edit a language model inside vLLM's engine, under standard names.

    python examples/quickstart.py [REPO_ID]     # a repo id or a checkpoint folder; SmolLM2 from .cache by default

The engine's own log goes to a file; NNTERP_VLLM_LOGS=1 shows it instead.
"""

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

SMOLLM2 = Path(__file__).resolve().parent.parent / ".cache" / "smollm2-135m"
PROMPT = "The Eiffel Tower is in the city of"


def main(repo_id: str) -> None:
    say(f"loading {Path(repo_id).name}: the library, then vLLM with its worker process (20 to 40 s)")
    from nnterp_vllm_core import StandardizedVLLM

    model = StandardizedVLLM(repo_id, dispatch=True, dtype="float32", max_model_len=256)
    say("ready")

    middle = model.num_layers // 2
    block = model.layers[middle]
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        x = block.layer_input.save()
        attention = block.self_attn.attention_output.save()
        mlp = block.mlp.mlp_output.save()
        out = block.layer_output.save()
        logits = model.logits.save()

    token = logits[0, -1].argmax()
    show("")
    show(f"family         {model.family.__name__}")
    show(f"sizes          {model.num_layers} layers, {model.hidden_size} hidden, ", end="")
    show(f"{model.num_heads} heads, {model.num_kv_heads} key/value heads")
    show(f"prompt         {PROMPT!r}")
    show(f"stream         {tuple(x.shape)} enters block {middle}, {tuple(out.shape)} leaves it")
    show(f"contributions  {tuple(attention.shape)} from attention, {tuple(mlp.shape)} from the MLP")
    show(f"logits         {tuple(logits.shape)}; the next token is {model.tokenizer.decode(token)!r}")
    residual = (x + attention + mlp - out).abs().max().item()
    show(f"identity       |layer_input + attention_output + mlp_output - layer_output| <= {residual}")

    # An edit in place and an assignment; both reach the model.
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        block.layer_output[:, -1] *= 0.5
        model.layers[middle + 1].mlp.mlp_output = model.layers[middle + 1].mlp.mlp_output * 0
        edited = model.logits.save()

    other = edited[0, -1].argmax()
    show("")
    show(f"edit           block {middle}'s last position halved, block {middle + 1}'s MLP switched off")
    show(f"effect         logits move by up to {(edited - logits).abs().max().item():.2f}; ", end="")
    show(f"{model.tokenizer.decode(token)!r} goes from {logits[0, -1, token]:.2f} to {edited[0, -1, token]:.2f}, ", end="")
    show(f"and the next token is {model.tokenizer.decode(other)!r}")
    show("")
    say("done")


BEGAN = time.monotonic()
SCREEN = sys.stdout


def show(line: str, end: str = "\n") -> None:
    print(line, end=end, file=SCREEN, flush=True)


def say(message: str) -> None:
    show(f"[quickstart {time.monotonic() - BEGAN:2.0f} s] {message}")


def log_to_file() -> Path:
    """Send what this process and its children write to a file, and leave the screen to `show`."""
    global SCREEN
    SCREEN = os.fdopen(os.dup(1), "w")
    handle, path = tempfile.mkstemp(prefix="quickstart-", suffix=".log")
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    return Path(path)


# vLLM spawns its worker, and the spawned process imports this script again: without the guard it would start an engine too.
if __name__ == "__main__":
    os.environ.setdefault(
        "VLLM_CPU_KVCACHE_SPACE", "1"
    )  # GB for the cache of keys and values; the CPU engine alone reads it
    log = None if os.environ.get("NNTERP_VLLM_LOGS", "0") != "0" else log_to_file()
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else str(SMOLLM2))
    except Exception as error:  # noqa: BLE001 - whatever it is, the screen shows its message and the log its traceback
        traceback.print_exc()
        show(f"{type(error).__name__}: {error}" + ("" if log is None else f"\nThe engine's log is in {log}"))
        sys.exit(1)
    if log is not None:
        log.unlink()
