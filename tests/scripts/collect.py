"""A collection on an engine of two ranks in processes of their own, written to a folder.

python collect.py CHECKPOINT OUT
"""

import sys

from nnterp_vllm_core import StandardizedVLLM
from nnterp_vllm_core.testing.engines import share_of_a_card

VALUES = ["layers.*.layer_output", "layers.1.self_attn.attention_queries", "layers.1.self_attn.attention_head_outputs"]
PROMPTS = ["The Eiffel Tower is in", "hello", "The capital of Japan is a city that", [5, 6, 7, 8], "one two three"]


def main(checkpoint: str, out: str) -> None:
    options = {"dispatch": True, "dtype": "float32", "max_model_len": 128, **share_of_a_card()}
    model = StandardizedVLLM(checkpoint, tensor_parallel_size=2, **options)
    model.collect(PROMPTS, VALUES, positions="all", out=out, quiet=True)
    model.vllm_entrypoint.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
