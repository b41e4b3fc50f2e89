"""``model.collect(...)``: what a call asks for, checked; then many prompts through the engine and their rows into shards."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import Any

import torch

from ..errors import OutputFolderError, UnsupportedEngine
from .flight import Flight
from .progress import progress
from .prompts import Prompts
from .result import Collected
from .selection import GENERATED, Positions, check_places, select
from .store import Entry, Folder, Memory

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
        with store, progress(total, quiet) as bar:
            _check_done(store, stream)
            bar.update(store.done)
            flight = Flight(self, views, {**job, "dtype": converted}, max_tokens or 1, sampling, window, shard_bytes, bar)
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
