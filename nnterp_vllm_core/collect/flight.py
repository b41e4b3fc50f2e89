"""The requests of a collection that are in flight, and their rows on the way home.

The engine schedules and batches as it does for anyone. A request carries its job's name and its number; the worker gathers
the rows (`worker.gathering`), and those of many requests are taken with one call.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import uuid4

import torch

from ..errors import CollectionError, UnsupportedEngine
from ..views import View
from .progress import Bar
from .prompts import Prompt
from .selection import GENERATED
from .store import Entry

#: Rows of at most so many bytes are on their way at once, in the worker and here.
IN_FLIGHT_BYTES = 1 << 30
#: Rows are taken when so many bytes or prompts of them wait in the worker.
TAKE_BYTES, TAKE_PROMPTS = 32 << 20, 512


class Flight:
    """One collection's requests, as a context: entered, the worker has its job; left, the engine has nothing of it."""

    def __init__(
        self,
        model: Any,
        views: dict[str, View],
        job: dict[str, Any],
        max_tokens: int,
        sampling: dict[str, Any],
        window: int | None,
        shard_bytes: int,
        bar: Bar,
    ) -> None:
        import cloudpickle

        self._model = model
        self._llm = model.vllm_entrypoint
        self._engine = self._llm.llm_engine
        self._views = views
        self._payload = cloudpickle.dumps(job)
        self._name = uuid4().hex
        self._max_tokens = max_tokens
        self._shared_params = shared_params(max_tokens, sampling)
        self._row_bytes = row_bytes(model, views.values())
        self._like = {path: no_rows(model, view, job["dtype"]) for path, view in views.items()}
        self._window = window or 2 * self._engine.vllm_config.scheduler_config.max_num_seqs
        self._due = min(TAKE_BYTES, shard_bytes)
        self._bar = bar
        self._generates = job["mode"] == GENERATED
        self._sent: dict[str, Prompt] = {}
        self._waiting: deque[Entry] = deque()
        self._entries: dict[int, Entry] = {}
        self._fed_back: dict[int, int] = {}

    def __enter__(self) -> Flight:
        self._rpc("open", self._payload)
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._sent:
            self._engine.abort_request(list(self._sent))
        self._rpc("close")

    def _rpc(self, verb: str, *arguments: Any) -> Any:
        return self._llm.collective_rpc("nnterp_vllm_collect", args=(verb, self._name, *arguments))

    def run(self, stream: Iterable[Prompt], reduced: bool) -> Iterator[Entry]:
        """Each prompt's entry, in the order of the prompts."""
        source = iter(stream)
        ended = False
        held = 0  # bytes of rows of prompts that were sent and are not home
        finished: list[Prompt] = []
        while True:
            while not ended and len(self._sent) < self._window and held < IN_FLIGHT_BYTES:
                prompt = next(source, None)
                if prompt is None:
                    ended = True
                    break
                held += self._send(prompt)
            self._check_alone()
            if self._sent:
                for output in self._engine.step():
                    if output.finished and output.request_id in self._sent:
                        prompt = self._sent.pop(output.request_id)
                        finished.append(prompt)
                        self._fed_back[prompt.number] = max(0, len(output.outputs[0].token_ids) - 1)
            due = sum(self._bytes(prompt) for prompt in finished) if finished else 0
            if finished and (not self._sent or len(finished) >= TAKE_PROMPTS or due >= self._due):
                self._take(finished, reduced)
                held -= due
                self._bar.tell(len(finished), sum(len(prompt.ids) for prompt in finished))
                finished = []
            while self._waiting and self._waiting[0].rows is not None:
                yield self._waiting.popleft()
            if ended and not self._sent and not finished:
                return

    def _send(self, prompt: Prompt) -> int:
        entry = Entry(len(prompt.ids), prompt.digest, prompt.skipped)
        self._waiting.append(entry)
        if not prompt.rows:
            entry.rows = {}
            self._bar.tell(1, 0)
            return 0
        self._entries[prompt.number] = entry
        request = str(next(self._llm.request_counter))
        tokens = {"type": "token", "prompt_token_ids": prompt.ids}
        try:
            self._engine.add_request(request, tokens, self._params(prompt))
        except Exception as error:  # such as a token that the vocabulary does not have; vLLM's class varies
            raise ValueError(f"Prompt {prompt.number} is refused by the engine: {error}") from error
        self._sent[request] = prompt
        return self._bytes(prompt)

    def _params(self, prompt: Prompt) -> Any:
        from ..worker.gathering import MARK

        params = copy.copy(self._shared_params)
        params.extra_args = {MARK: [self._name, prompt.number, prompt.own]}
        return params

    def _bytes(self, prompt: Prompt) -> int:
        """What a prompt's rows take, for a bound: four bytes for each number."""
        fixed, for_each_key = self._row_bytes
        return prompt.rows * self._max_tokens * (fixed + for_each_key * len(prompt.ids))

    def _check_alone(self) -> None:
        """Refuse to go on when someone else ran the engine, whose answers to our requests are lost then."""
        if self._engine.get_num_unfinished_requests() != len(self._sent):
            raise UnsupportedEngine(
                "The engine was used while it collects, probably by the iterable that gives the prompts. Make the prompts "
                "before, or with another engine."
            )

    def _take(self, finished: list[Prompt], reduced: bool) -> None:
        """Bring the rows of finished requests home.

        The engine may have computed a step or two more of a generation than it has tokens: it schedules ahead, or a stop
        string was found here after it had gone on. Rows beyond the tokens that were fed back are none of the generation's.
        """
        numbers = [prompt.number for prompt in finished]
        fed_back = [self._fed_back.pop(number) for number in numbers]
        header, *buffers = next(found for found in self._rpc("take", numbers, fed_back) if found is not None)
        told = json.loads(header)
        if told["error"]:
            raise CollectionError(f"The worker could not collect: {told['error']}")
        for number in told["prompts"]:
            if self._entries[number].rows is None:
                self._entries[number].rows = {}
        for described, raw in zip(told["values"], buffers, strict=True):
            self._spread(told, described, raw)
        if self._generates:
            for number, count in zip(numbers, () if reduced else fed_back, strict=not reduced):
                entry = self._entries[number]
                entry.rows = {path: rows[:count] for path, rows in (entry.rows or {}).items()}
            self._fill(numbers)
        for number in numbers:
            entry = self._entries.pop(number)
            if not entry.rows or set(entry.rows) != set(self._views):
                raise CollectionError(
                    f"The model never came by {sorted(set(self._views) - set(entry.rows or {}))!r} for prompt {number}."
                )

    def _spread(self, told: dict[str, Any], described: dict[str, Any], raw: bytes) -> None:
        path, dtype = described["path"], getattr(torch, described["dtype"])
        with warnings.catch_warnings():
            # Nobody writes into these; shards copy them.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.zeros(0, dtype=dtype)
        if "shape" in described:
            pieces = torch.split(flat.view(described["shape"]), told["counts"])
        else:
            sizes = [math.prod(shape) for shape in described["shapes"]]
            shaped = zip(torch.split(flat, sizes), described["shapes"], strict=True)
            pieces = tuple(piece.view(shape) for piece, shape in shaped)
        for number, piece in zip(told["prompts"], pieces, strict=True):
            rows = self._entries[number].rows
            assert rows is not None
            # A generation's rows come home in as many pieces as steps.
            rows[path] = piece if path not in rows else torch.cat([rows[path], piece])

    def _fill(self, numbers: list[int]) -> None:
        """Give a generation that stopped at its first token its zero rows, in the shape of the others."""
        like = next((entry.rows for entry in self._entries.values() if entry.rows), None)
        if like is not None:
            self._like = {path: rows[:0] for path, rows in like.items()}
        for number in numbers:
            if not self._entries[number].rows:
                self._entries[number].rows = dict(self._like)


def shared_params(max_tokens: int, sampling: dict[str, Any]) -> Any:
    """What all requests of a collection ask of the sampler."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        **{"temperature": 0.0, **sampling},
        max_tokens=max_tokens,
        detokenize="stop" in sampling,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    # A token out of the prefix cache is never computed, so its row would not be there.
    params.skip_reading_prefix_cache = True
    # Each request has a copy of these that vLLM may change; what the copies share it changes for all of them alike.
    params.skip_clone = True
    return params


def axis_sizes(model: Any) -> dict[str, int]:
    """The sizes of those axes that are the model's own."""
    return {
        "hidden": model.hidden_size,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "vocab": model.vocab_size,
    }


def no_rows(model: Any, view: View, dtype: str | None) -> torch.Tensor:
    """Zero rows of a value, for when no prompt has any; each row has the axes that are neither batch nor position."""
    sizes = axis_sizes(model)
    shape = [sizes[word] for word in view.value.axes if word in sizes]
    if view.value.name == "input_ids":
        return torch.zeros(0, dtype=torch.int64)
    kept = model.vllm_entrypoint.llm_engine.model_config.dtype if dtype is None else getattr(torch, dtype)
    return torch.zeros(0, *shape, dtype=kept)


def row_bytes(model: Any, views: Iterable[View]) -> tuple[int, int]:
    """Bytes of one position of every value: those of any prompt, and those for each of its tokens (a pattern's keys)."""
    sizes = axis_sizes(model)
    fixed = for_each_key = 0
    for view in views:
        numbers = 4 * math.prod(sizes.get(word, 1) for word in view.value.axes)
        if "key" in view.value.axes:
            for_each_key += numbers
        else:
            fixed += numbers
    return fixed, for_each_key
