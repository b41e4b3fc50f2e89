"""What an engine with a spawned worker does, as a user's script would see it; the answers go to a JSON file.

python spawned.py CHECKPOINT OUT
"""

import json
import multiprocessing.process
import os
import sys
import warnings
from typing import Any

import nnsight
import torch
from support.blocks import as_in_any_batch
from support.shared import files, move_in
from vllm import SamplingParams

from nnterp_vllm_core import StandardizedVLLM, UnsupportedEngine
from nnterp_vllm_core.envoys import MlpEnvoy
from nnterp_vllm_core.testing.engines import share_of_a_card
from nnterp_vllm_core.worker import shared_memory

move_in()  # the worker imports this file again

PROMPT = "The Eiffel Tower is in the city of"


class Doubled(MlpEnvoy):
    """A user's own envoy, defined in the script itself."""

    @property
    def doubled(self) -> torch.Tensor:
        return self.mlp_output * 2


def large(model: StandardizedVLLM, out: str) -> dict[str, Any]:
    """Saves of some hundred kilobytes, twice, and all of them in a file for another engine's to be compared with."""
    prompts = [list(range(5 + row, 45 + row)) for row in range(6)]
    taken = []
    arrived = shared_memory.arrived

    def counted(name: str, message: bytes) -> Any:
        taken.append((name, len(message)))
        return arrived(name, message)

    def every_position() -> list[list[torch.Tensor]]:
        with model.trace(temperature=0.0, max_tokens=1) as tracer:
            for ids in prompts:
                with tracer.invoke(ids):
                    states = nnsight.save([])
                    for block in model.blocks:
                        states.append(block.layer_output)
        return states

    shared_memory.arrived = counted
    first = every_position()
    beside = list(taken)
    shared_memory.arrived = arrived
    again = every_position()
    torch.save([[tensor.cpu() for tensor in states] for states in first], out)
    return {
        "beside": beside,
        "bytes": sum(tensor.numel() * 4 for states in first for tensor in states),
        "equal": all(
            as_in_any_batch(a, b) for one, two in zip(first, again, strict=True) for a, b in zip(one, two, strict=True)
        ),
        "own memory": all(t.untyped_storage().nbytes() == t.numel() * 4 for states in first for t in states),
        "left": sorted(files()),
    }


def stopped(model: StandardizedVLLM) -> dict[str, Any]:
    """A generation that ends at a string, which the driver finds when the engine has gone on."""
    readable = [number for number in range(3, 200) if model.tokenizer.decode([number]).isalpha()]
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True, "allowed_token_ids": readable}
    ids = model.vllm_entrypoint.generate([PROMPT], SamplingParams(**settings), use_tqdm=False)[0].outputs[0].token_ids
    text = model.tokenizer.decode([ids[3]])
    output = model.vllm_entrypoint.generate([PROMPT], SamplingParams(**settings, stop=[text]), use_tqdm=False)[0]
    value = "layers.2.layer_output"
    whole = model.collect([PROMPT], value, positions="generated", **settings, quiet=True)[value]
    found, mean = (
        model.collect([PROMPT], value, positions="generated", reduce=reduce, **settings, stop=[text], quiet=True)[value]
        for reduce in (None, "mean")
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with model.trace(PROMPT, **settings, stop=[text]):
            logits = model.logits.save()
    tokens = len(output.outputs[0].token_ids)
    rows = whole[: tokens - 1]
    return {
        "tokens": tokens,
        "rows": len(found),
        "same rows": torch.equal(found, rows),
        # The worker's mean is its device's: CUDA multiplies by the reciprocal of the number of rows, and the CPU divides.
        "same mean": torch.equal(mean[0], rows.to(logits.device).mean(0).cpu()),
        "warnings": [str(one.message) for one in caught if "stop=" in str(one.message)],
    }


def refused(checkpoint: str) -> dict[str, Any]:
    """A tree that cannot be built, which is seen while the engine's processes start already."""
    started = []
    start = multiprocessing.process.BaseProcess.start

    def noted(process: Any) -> None:
        start(process)
        started.append(process)

    multiprocessing.process.BaseProcess.start = noted
    try:
        options = {"dispatch": True, "dtype": "float32", "max_model_len": 128, **share_of_a_card()}
        StandardizedVLLM(checkpoint, family="nnterp_vllm_families.gpt2", **options)
    except UnsupportedEngine as error:
        return {"text": str(error), "started": len(started), "alive": [process.is_alive() for process in started]}
    finally:
        multiprocessing.process.BaseProcess.start = start
    return {}


def main(checkpoint: str, out: str) -> None:
    answers: dict[str, Any] = {"refused": refused(checkpoint)}
    model = StandardizedVLLM(
        checkpoint,
        dispatch=True,
        dtype="float32",
        max_model_len=128,
        **share_of_a_card(),
        rename={"model.layers": "blocks", "model.norm": "last_norm"},
        envoys={"model.model.layers.*.mlp": Doubled},
    )
    settings = {"temperature": 0.0, "max_tokens": 1}
    answers["driver"] = os.getpid()

    with model.trace(PROMPT, **settings):
        worker = torch.tensor(os.getpid()).save()
        mlp = model.blocks[1].mlp.mlp_output.save()
        doubled = model.blocks[1].mlp.doubled.save()
        entering = model.last_norm.input.save()
        logits = model.logits.save()
    answers["worker"] = worker.item()
    answers["user's envoy"] = torch.equal(mlp * 2, doubled)
    answers["user's name"] = list(entering.shape)
    answers["logits"] = logits[0, 0].tolist()

    try:
        with model.trace(PROMPT, **settings):
            raise LookupError("the user's own words")
    except RuntimeError as error:
        answers["error"] = str(error).splitlines()[0]
    with model.trace(PROMPT, **settings) as tracer:
        tracer.stop()
    with model.trace(PROMPT, **settings):
        again = model.logits.save()
    answers["alive"] = torch.equal(again, logits)

    def sizes() -> list[int]:
        """Bytes that an all-layers loop ships, run after run."""
        found = []
        generate = model.vllm_entrypoint.generate

        def measured(prompts, sampling_params, **kwargs):
            found.append(len(sampling_params[0].extra_args["nnsight_mediator"]))
            return generate(prompts, sampling_params=sampling_params, **kwargs)

        model.vllm_entrypoint.generate = measured
        for _ in range(3):
            with model.trace(PROMPT, **settings):
                streams = nnsight.save([])
                for block in model.blocks:
                    streams.append(block.layer_output)
            assert len(streams) == model.num_layers
        model.vllm_entrypoint.generate = generate
        return found

    answers["shipped"] = sizes()
    answers["large"] = large(model, f"{out}.pt")
    answers["stopped"] = stopped(model)
    with open(out, "w") as file:
        json.dump(answers, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
