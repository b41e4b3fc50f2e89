"""An engine in streaming mode: values arrive on the finished output.

python streaming.py CHECKPOINT OUT
"""

import asyncio
import json
import sys

from nnterp_vllm_core import StandardizedVLLM
from nnterp_vllm_core.testing.engines import share_of_a_card

PROMPT = "The Eiffel Tower is in the city of"


async def main(checkpoint: str, out: str) -> None:
    options = {"dispatch": True, "dtype": "float32", "max_model_len": 128, **share_of_a_card()}
    model = StandardizedVLLM(checkpoint, mode="async", **options)
    block = model.layers[1]
    with model.trace(PROMPT, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
        block.layer_output[:, -1] *= 0.5
        stream = block.layer_output.save()  # noqa: F841 - it arrives under this name
        logits = model.logits.save()  # noqa: F841 - and so does this
    outputs = [output async for output in tracer.backend]
    last = outputs[-1]
    answers = {
        "outputs": len(outputs),
        "tokens": len(last.outputs[0].token_ids),
        "stream": list(last.saves["stream"].shape),
        "logits": last.saves["logits"][0, 0].tolist(),
    }
    with open(out, "w") as file:
        json.dump(answers, file)
    model.vllm_entrypoint.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
