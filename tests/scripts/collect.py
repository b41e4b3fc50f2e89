"""A collection on an engine of two ranks in processes of their own, written to a folder.

python collect.py CHECKPOINT OUT
"""

import sys

from nnterp_vllm_core import StandardizedVLLM

VALUES = ["layers.*.layer_output", "layers.1.self_attn.attention_queries", "layers.1.self_attn.attention_head_outputs"]
PROMPTS = ["The Eiffel Tower is in", "hello", "The capital of Japan is a city that", [5, 6, 7, 8], "one two three"]


def main(checkpoint: str, out: str) -> None:
    model = StandardizedVLLM(checkpoint, dispatch=True, dtype="float32", max_model_len=128, tensor_parallel_size=2)
    model.collect(PROMPTS, VALUES, positions="all", out=out, quiet=True)
    model.vllm_entrypoint.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
