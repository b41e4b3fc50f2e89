"""A plain ``vllm.LLM``, alone or beside our engine, and what importing and loading us changed; one line of JSON.

python bystander_program.py CHECKPOINT alone|beside
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import types
from typing import Any

PROMPTS = ["The Eiffel Tower is in", "hello", "The capital of Japan is Tokyo and the capital of France is"]
#: Packages whose modules and classes must be as they were.
THEIRS = ("torch", "vllm", "transformers")
#: Where a changed function would reach other people's models and engines. The rest of torch and transformers changes
#: itself on first use: torch's compiler marks optimizers, transformers fills its lazy modules.
SHARED = ("vllm.", "torch.nn.", "torch.Tensor.", "transformers.modeling", "transformers.models.llama.")


def attributes() -> dict[str, Any]:
    """Every attribute of every imported module and class of the three packages."""
    found: dict[str, Any] = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in THEIRS or module is None:
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, types.ModuleType) or key.startswith("__"):
                continue
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and str(value.__module__).partition(".")[0] in THEIRS:
                found |= {f"{value.__module__}.{value.__qualname__}.{it}": one for it, one in vars(value).items()}
    return found


def is_ours(value: Any) -> bool:
    """Whether an attribute runs code of ours, seen through wrappers, bound methods and descriptors."""
    if isinstance(value, types.MethodType | staticmethod | classmethod):
        return is_ours(value.__func__)
    if isinstance(value, property):
        return is_ours(value.fget)
    if isinstance(value, functools.partial):
        return is_ours(value.func)
    if isinstance(value, types.FunctionType):
        return "nnterp_vllm" in value.__code__.co_filename or is_ours(vars(value).get("__wrapped__"))
    owner = value.__module__ if isinstance(value, type) else type(value).__module__
    return str(owner).startswith("nnterp_vllm")


def plain(checkpoint: str) -> list[Any]:
    """What a user's own engine generates: token ids and log probabilities, to the bit."""
    from vllm import LLM, SamplingParams

    engine = LLM(checkpoint, dtype="float32", max_model_len=128, enforce_eager=True)
    greedy = SamplingParams(temperature=0.0, max_tokens=8, logprobs=3, ignore_eos=True)
    return [
        [
            list(output.outputs[0].token_ids),
            [{str(token): one.logprob.hex() for token, one in step.items()} for step in output.outputs[0].logprobs],
        ]
        for output in engine.generate(PROMPTS, greedy, use_tqdm=False)
    ]


def main() -> None:
    checkpoint, how = sys.argv[1:]
    if how == "alone":
        generated = plain(checkpoint)
        ours = sorted(name for name in sys.modules if name.startswith("nnterp_vllm"))
        print(json.dumps({"generated": generated, "ours imported": ours}), flush=True)
        return

    import nnsight.modeling.vllm
    import torch
    import transformers
    import vllm

    for module in (nnsight.modeling.vllm, torch, transformers, vllm):
        assert module
    before = attributes()
    from nnterp_vllm_core import StandardizedVLLM

    model = StandardizedVLLM(checkpoint, dtype="float32", max_model_len=128)
    after = attributes()
    changed = [
        name
        for name, value in before.items()
        if after.get(name) is not value and (inspect.isroutine(value) or isinstance(value, type)) and name.startswith(SHARED)
    ]
    planted = [name for name, value in after.items() if is_ours(value)]
    model.dispatch()
    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
        model.layers[1].layer_output[:] = 0
        edited = model.logits.save()
    generated = plain(checkpoint)
    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
        model.layers[1].layer_output[:] = 0
        again = model.logits.save()
    planted += [name for name, value in attributes().items() if is_ours(value)]
    seen = {"looked at": len(before), "changed": changed, "planted": planted, "generated": generated}
    print(json.dumps(seen | {"ours is alive": torch.equal(edited, again)}), flush=True)


if __name__ == "__main__":
    main()
