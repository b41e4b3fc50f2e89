"""``model.collect(...)``: many prompts through the engine, a bounded number at a time, their rows into shards.

The engine schedules and batches as it does for anyone. A request carries its job's name and its number; the worker gathers
the rows (`worker.gathering`) and the driver takes those of many requests with one call.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from ..errors import CollectionError, OutputFolderError, UnsupportedEngine
from ..views import View
from .prompts import Prompt, Prompts
from .result import Collected
from .selection import GENERATED, Positions, check_places, select
from .store import Entry, Folder, Memory

#: Rows of at most so many bytes are on their way at once, in the worker and here.
IN_FLIGHT_BYTES = 1 << 30
#: The driver takes rows when so many bytes or prompts of them wait in the worker.
TAKE_BYTES, TAKE_PROMPTS = 32 << 20, 512
#: A shard holds at most so many prompts, so that an interruption costs little where rows are small.
SHARD_PROMPTS = 8192


class BulkCollection:
    """The method `collect`, for a model on the vLLM engine."""

    vllm_entrypoint: Any
    tokenizer: Any
    family: Any
    _contributions: Any

    def collect(
        self,
        prompts: Iterable[Any],
        values: str | Iterable[str],
        *,
        positions: Any = "last",
        reduce: str | Callable[[torch.Tensor], torch.Tensor] | None = None,
        dtype: torch.dtype | str | None = None,
        out: str | Path | None = None,
        max_tokens: int | None = None,
        too_long: str = "error",
        shard_bytes: int = 256 << 20,
        window: int | None = None,
        quiet: bool = False,
        **sampling: Any,
    ) -> Collected:
        """Collect values of many prompts, at the engine's own speed and in constant memory.

        Args:
            prompts: Any iterable: strings, sequences of token ids, or mappings with ``input_ids`` or ``prompt``. It is read
                as it is needed.
            values: A path such as ``"layers.3.layer_output"``, with ``*`` where it may vary, or several.
            positions: ``"last"``, ``"all"``, an integer or a list of integers (negative from the end), one mask for each
                prompt (an iterable beside ``prompts``), or ``"generated"``: the positions of the tokens that are generated
                and fed back, one less than ``max_tokens``.
            reduce: ``"mean"`` or ``"sum"`` over a prompt's positions, or a function ``[positions, ...] -> [...]`` (or its
                name, ``"module:function"``) that runs in the worker.
            dtype: What rows are converted to, after ``reduce``; ``None`` keeps the engine's.
            out: A folder for safetensors shards and ``index.json``; a run that was interrupted goes on where it stopped.
                ``None`` keeps everything in memory.
            max_tokens: With ``positions="generated"``, how many tokens to generate.
            too_long: ``"error"``, or ``"skip"`` to record a prompt that the context cannot hold without rows.
            shard_bytes: A shard ends with the prompt that brings it to this size.
            window: How many requests may be in flight; ``None`` for twice the engine's ``max_num_seqs``.
            quiet: Show no progress.
            **sampling: Settings of the generation, as for a trace; ``temperature`` is 0 unless it is given.

        Returns:
            The rows, prompt after prompt in the order given. They equal, to the bit, what a trace of the same prompts
            reads when the engine forms the same batches.

        Raises:
            ValueError, IndexError, TypeError: A value, position, prompt or setting that cannot be; a prompt is named by its
                number. Values are checked before anything runs, prompts before they are sent.
            Unavailable: A value that is not served, or not at these positions.
            OutputFolderError: The folder holds another run, or cannot be written; what is there stays.
            CollectionError: The worker failed, for example in ``reduce``.
            UnsupportedEngine: An engine in ``mode="async"``, or one with requests of others in flight.
        """
        views = select(self, values)
        places = Positions.of(positions)
        check_places(views, places)
        if too_long not in ("error", "skip"):
            raise ValueError(f"too_long={too_long!r} is neither 'error' nor 'skip'.")
        if places.mode != GENERATED and (sampling or max_tokens is not None):
            extra = sorted({*sampling, *(() if max_tokens is None else ("max_tokens",))})
            raise TypeError(f"{extra!r} belong to a generation; pass positions='generated' or leave them out.")
        if places.mode == GENERATED and (max_tokens is None or max_tokens < 2):
            raise ValueError("positions='generated' needs max_tokens of at least 2: the last token is never fed back.")
        engine = _engine(self)
        converted = _dtype_name(dtype)
        run = {
            "model": self._contributions.repo_id,
            "family": self.family.__name__,
            "engine_dtype": str(engine.model_config.dtype).removeprefix("torch."),
            "values": list(views),
            "positions": places.described,
            "reduce": _described(reduce),
            "dtype": converted,
            "sampling": {**json.loads(json.dumps(sampling, default=repr)), "max_tokens": max_tokens} if max_tokens else None,
            "too_long": too_long,
        }
        room = engine.model_config.max_model_len - (max_tokens or 1)
        stream = Prompts(prompts, self.tokenizer, places, room, too_long == "skip")
        total = len(prompts) if isinstance(prompts, Sized) else None
        job = {"paths": list(views), "mode": places.mode, "chosen": places.chosen, "reduce": _travelling(reduce)}
        store: Any = Memory(run) if out is None else Folder(Path(out), run)
        with store, _progress(total, quiet) as bar:
            _check_done(store, stream)
            bar.update(store.done)
            flight = _Flight(self, views, {**job, "dtype": converted}, max_tokens or 1, sampling, window, shard_bytes, bar)
            with flight:
                shard: list[Entry] = []
                size = 0
                for entry in flight.run(stream, reduce is not None):
                    shard.append(entry)
                    size += sum(rows.nbytes for rows in (entry.rows or {}).values())
                    if size >= shard_bytes or len(shard) >= SHARD_PROMPTS:
                        store.add(shard)
                        shard, size = [], 0
                if shard:
                    store.add(shard)
            found: Collected = store.finish()
        return found


class _Flight:
    """The requests in flight and the rows that came home."""

    def __init__(
        self,
        model: Any,
        views: dict[str, View],
        job: dict[str, Any],
        max_tokens: int,
        sampling: dict[str, Any],
        window: int | None,
        shard_bytes: int,
        bar: Any,
    ) -> None:
        import cloudpickle

        self._model = model
        self._llm = model.vllm_entrypoint
        self._engine = self._llm.llm_engine
        self._views = views
        self._payload = cloudpickle.dumps(job)
        self._name = uuid4().hex
        self._max_tokens = max_tokens
        self._sampling = sampling
        self._window = window or 2 * self._engine.vllm_config.scheduler_config.max_num_seqs
        self._due = min(TAKE_BYTES, shard_bytes)
        self._bar = bar
        self._generates = job["mode"] == GENERATED
        self._sent: dict[str, Prompt] = {}
        self._waiting: deque[Entry] = deque()
        self._entries: dict[int, Entry] = {}

    def __enter__(self) -> _Flight:
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
                        finished.append(self._sent.pop(output.request_id))
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
        self._engine.add_request(request, _tokens(prompt.ids), self._params(prompt))
        self._sent[request] = prompt
        return self._bytes(prompt)

    def _params(self, prompt: Prompt) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from ..worker.gathering import MARK

        params = SamplingParams(
            **{"temperature": 0.0, **self._sampling},
            max_tokens=self._max_tokens,
            detokenize="stop" in self._sampling,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args={MARK: [self._name, prompt.number, prompt.own]},
        )
        # A token out of the prefix cache is never computed, so its row would not be there.
        params.skip_reading_prefix_cache = True
        return params

    def _bytes(self, prompt: Prompt) -> int:
        return prompt.rows * self._max_tokens * self._row_bytes(len(prompt.ids))

    def _row_bytes(self, tokens: int) -> int:
        """Bytes of one position of every value, for a bound: four for each number."""
        sizes = self._model
        known: dict[str, int] = {
            "hidden": sizes.hidden_size,
            "heads": sizes.num_heads,
            "kv_heads": sizes.num_kv_heads,
            "head_dim": sizes.head_dim,
            "vocab": sizes.vocab_size,
            "key": tokens,
        }
        return 4 * sum(math.prod(known.get(word, 1) for word in view.value.axes) for view in self._views.values())

    def _check_alone(self) -> None:
        """Refuse to go on when someone else ran the engine, whose answers to our requests are lost then."""
        if self._engine.get_num_unfinished_requests() != len(self._sent):
            raise UnsupportedEngine(
                "The engine was used while it collects, probably by the iterable that gives the prompts. Make the prompts "
                "before, or with another engine."
            )

    def _take(self, finished: list[Prompt], reduced: bool) -> None:
        """Bring the rows of finished requests home."""
        numbers = [prompt.number for prompt in finished]
        header, *buffers = next(found for found in self._rpc("take", numbers) if found is not None)
        told = json.loads(header)
        if told["error"]:
            raise CollectionError(f"The worker could not collect: {told['error']}")
        for number in told["prompts"]:
            if self._entries[number].rows is None:
                self._entries[number].rows = {}
        for described, raw in zip(told["values"], buffers, strict=True):
            self._spread(told, described, raw)
        if self._generates:
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
        """Give a generation that stopped at its first token its zero rows."""
        like = next((entry.rows for entry in self._entries.values() if entry.rows), None)
        for number in numbers:
            entry = self._entries[number]
            if not entry.rows and like is not None:
                entry.rows = {path: rows[:0] for path, rows in like.items()}


def _tokens(ids: list[int]) -> Any:
    return {"prompt_token_ids": ids}


def _engine(model: Any) -> Any:
    if getattr(model, "_async_engine", False):
        raise UnsupportedEngine("collect() drives the engine itself and this one is in mode='async'; leave mode out.")
    if not model.dispatched:
        model.dispatch()
    engine = model.vllm_entrypoint.llm_engine
    if engine.has_unfinished_requests():
        raise UnsupportedEngine("The engine has unfinished requests, whose answers would be lost. Wait for them first.")
    return engine


def _check_done(store: Memory | Folder, stream: Prompts) -> None:
    """Compare the prompts that a folder holds with the first ones of this call, and pass over them."""
    hashes = dict(store.digests)
    seen = 0
    for seen, digest in stream.pass_over(store.done):
        if hashes.get(seen, digest) != digest:
            first = max((end for end in hashes if end < seen), default=0)
            raise OutputFolderError(
                f"The folder holds another run: its prompts {first} to {seen - 1} are not this call's. Give another folder, "
                f"or the same prompts to go on with that run."
            )
    if seen < store.done:
        raise OutputFolderError(f"The folder holds {store.done} prompts and this call gives {seen}, so it is another run.")


def _dtype_name(dtype: torch.dtype | str | None) -> str | None:
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise ValueError(f"dtype={dtype!r} is no torch dtype; give torch.float16 or 'float16', for example.")
    return name


def _described(reduce: Any) -> str | None:
    if reduce is None or isinstance(reduce, str):
        if isinstance(reduce, str) and reduce not in ("mean", "sum") and ":" not in reduce:
            raise ValueError(f"reduce={reduce!r} is neither 'mean', 'sum' nor of the form 'module:function'.")
        return reduce
    if not callable(reduce):
        raise TypeError(f"reduce={reduce!r} is no function.")
    name = getattr(reduce, "__qualname__", repr(reduce))
    with contextlib.suppress(OSError, TypeError):
        return f"{name}: {inspect.getsource(reduce).strip()}"
    return name


def _travelling(reduce: Any) -> Any:
    """``reduce`` as the worker gets it: a name, or a function by value, which its process may not be able to import."""
    import cloudpickle

    return reduce if reduce is None or isinstance(reduce, str) else cloudpickle.dumps(reduce)


class _Bar:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._tokens = 0

    def update(self, prompts: int) -> None:
        """Prompts that were there already."""
        self._bar.initial = prompts
        self._bar.n = prompts
        self._bar.refresh()

    def tell(self, prompts: int, tokens: int) -> None:
        """More prompts, and how many tokens they have."""
        if self._bar.disable:
            return
        self._tokens += tokens
        self._bar.update(prompts)
        elapsed = self._bar.format_dict["elapsed"]
        if elapsed:
            self._bar.set_postfix_str(f"{self._tokens / elapsed:.0f} tokens/s", refresh=False)


@contextlib.contextmanager
def _progress(total: int | None, quiet: bool) -> Iterator[_Bar]:
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, desc="Collecting", unit="prompt", disable=quiet) as bar:
        yield _Bar(bar)
