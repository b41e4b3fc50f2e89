"""The survey of each checkpoint on an engine of two ranks, saved as tensors.

python two_ranks.py OUT CHECKPOINT...
"""

import sys
from pathlib import Path

import torch
from support.survey import survey

from nnterp_vllm_core import StandardizedVLLM


def main(out: str, checkpoints: list[str]) -> None:
    for checkpoint in checkpoints:
        model = StandardizedVLLM(checkpoint, dispatch=True, dtype="float32", max_model_len=128, tensor_parallel_size=2)
        torch.save(survey(model, "The Eiffel Tower is in the city of"), Path(out) / f"{Path(checkpoint).name}.pt")
        model.vllm_entrypoint.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
