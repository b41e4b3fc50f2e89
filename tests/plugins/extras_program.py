"""Read values that a plugin adds, on a running engine, and print what was seen as one line of JSON.

python extras_program.py CHECKPOINT
"""

from __future__ import annotations

import json
import os
import sys
import warnings

import torch


def main() -> None:
    from nnterp_vllm_core import StandardizedVLLM
    from nnterp_vllm_core.errors import LoadVetoed, NnterpVLLMError

    seen: dict[str, object] = {}
    spawned = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    options = {} if spawned else {"distributed_executor_backend": "uni"}
    try:
        StandardizedVLLM(sys.argv[1], dtype="float16")
    except LoadVetoed as error:
        seen["vetoed"] = [str(error), type(error.__cause__).__name__]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        StandardizedVLLM(sys.argv[1], dtype="float32")
    seen["warned"] = [str(one.message) for one in caught if "dictionary" in str(one.message)]
    model = StandardizedVLLM(sys.argv[1], dispatch=True, dtype="float32", max_model_len=128, **options)
    layer = model.layers[1]
    with model.trace("The Eiffel Tower is in", temperature=0.0, max_tokens=1):
        gate = layer.mlp.gate.save()
        mlp = layer.mlp.mlp_output.save()
        features = layer.mlp.features.save()
        clean = layer.layer_output.save()
        doubled = layer.doubled_stream.save()
        top = model.top_logit.save()
        logits = model.logits.save()
    seen["features"] = torch.equal(features, torch.relu(mlp[..., :8]) + 1)
    seen["axes"] = [list(features.shape), list(doubled.shape), list(top.shape)]
    seen["doubled"] = torch.equal(doubled, clean * 2)
    seen["top"] = torch.equal(top, logits.amax(-1))
    seen["gate"] = list(gate.shape)

    with model.trace("The Eiffel Tower is in", temperature=0.0, max_tokens=1):
        layer.mlp.mlp_output[:] = 3.0
        edited = layer.mlp.features.save()
    seen["after an edit"] = bool((edited == 4.0).all())

    with model.trace("The Eiffel Tower is in", temperature=0.0, max_tokens=1):
        untouched = model.logits.save()
    seen["read leaves no trace"] = torch.equal(logits, untouched)

    def first_line(block: object) -> str:
        try:
            block()  # type: ignore[operator]
        except (NnterpVLLMError, RuntimeError) as error:
            return str(error).splitlines()[0]
        return "nothing raised"

    def assign() -> None:
        with model.trace("The Eiffel", temperature=0.0, max_tokens=1):
            layer.mlp.features = layer.mlp.features * 2

    def edit() -> None:
        with model.trace("The Eiffel", temperature=0.0, max_tokens=1):
            layer.mlp.features[:] = 0

    def elsewhere() -> None:
        with model.trace("The Eiffel", temperature=0.0, max_tokens=1):
            model.layers[0].mlp.features.save()

    seen["assigned"], seen["edited"], seen["elsewhere"] = first_line(assign), first_line(edit), first_line(elsewhere)
    support = model.support()
    seen["support"] = {name: support[name] for name in support if name.split(".")[-1] in ("features", "top_logit", "gate")}
    seen["doc"] = type(layer.mlp).features.__doc__
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
