"""Load a checkpoint, trace it once, and print what was used and seen, as one line of JSON.

python trace_program.py CHECKPOINT
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import nnterp_vllm_core
    from nnterp_vllm_core import StandardizedVLLM

    model = StandardizedVLLM(
        sys.argv[1], dispatch=True, dtype="float32", max_model_len=128, distributed_executor_backend="uni"
    )
    block = model.layers[1]
    with model.trace("The Eiffel Tower is in", temperature=0.0, max_tokens=1):
        before = block.layer_input.save()
        attention = block.self_attn.attention_output.save()
        mlp = block.mlp.mlp_output.save()
        after = block.layer_output.save()
        logits = model.logits.save()
    seen = {
        "core": nnterp_vllm_core.__file__,
        "family": model.family.__name__,
        "identity": ((before + attention + mlp - after).abs().max() / after.abs().max()).item(),
        "logits": list(logits.shape),
        "layers": model.num_layers,
    }
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
