"""The survey of each checkpoint on an engine of two ranks, saved as tensors.

python two_ranks.py OUT CHECKPOINT...
"""

import sys
from pathlib import Path

import torch
from support.survey import survey

from nnterp_vllm_core import StandardizedVLLM
from nnterp_vllm_core.testing.engines import share_of_a_card


def main(out: str, checkpoints: list[str]) -> None:
    for checkpoint in checkpoints:
        options = {"dispatch": True, "dtype": "float32", "max_model_len": 128, **share_of_a_card()}
        model = StandardizedVLLM(checkpoint, tensor_parallel_size=2, **options)
        torch.save(survey(model, "The Eiffel Tower is in the city of"), Path(out) / f"{Path(checkpoint).name}.pt")
        model.vllm_entrypoint.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
