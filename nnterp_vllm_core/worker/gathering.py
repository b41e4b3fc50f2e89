"""Bulk collection in the engine's worker: the wanted rows of all requests of a step, taken with one copy per value.

No block runs for these requests. The driver opens a job once (which values, which positions), and a request brings only
its number. When the model is at a location that an open job wants, the rows of all its requests in this step are copied
together. They wait here until the driver takes them, many requests in one buffer.
"""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from nnsight.util import apply

from ..collect.selection import ALL, GENERATED, LAST, every_view, position_axis
from ..views import RowsView, View

#: The key of a request's ticket in vLLM's ``extra_args``: the job's name, the prompt's number and its own positions.
MARK = "nnterp_vllm_collect"

_LOGITS = "model.logits"


class Job:
    """An open collection.

    Attributes:
        views: The view of each value, by path.
        steps: What was gathered and not yet taken.
        error: The first thing that went wrong, in words for the user.
    """

    def __init__(self, model: Any, payload: bytes) -> None:
        asked = pickle.loads(payload)
        known = every_view(model)
        self.views: dict[str, View] = {path: known[path] for path in asked["paths"]}
        self.mode: str = asked["mode"]
        self.chosen: tuple[int, ...] = asked["chosen"]
        self.reduce = reduction(asked["reduce"])
        self.dtype = None if asked["dtype"] is None else getattr(torch, asked["dtype"])
        self.steps: list[Step] = []
        self.held: dict[int, dict[str, list[torch.Tensor]]] = {}
        self.error: str | None = None

    def fail(self, message: str) -> None:
        """Keep the first error."""
        self.error = self.error or message


class Ticket:
    """One request of a job."""

    __slots__ = ("job", "last", "number", "own")

    def __init__(self, job: Job, number: int, own: list[int] | None) -> None:
        self.job = job
        self.number = number
        self.own = own
        self.last = -1

    def positions(self, computed: int, tokens: int, prompt: int) -> list[int] | range | None:
        """The wanted positions among the ``tokens`` rows of this step; ``None`` for none.

        Args:
            computed: Tokens of the request that were computed before this step.
            tokens: Tokens that this step computes.
            prompt: Tokens of the prompt.
        """
        newest = computed + tokens - 1
        if self.job.mode == GENERATED:
            # A preempted request's whole text is computed again; its newest row alone is new.
            if newest < prompt or newest <= self.last:
                return None
            self.last = newest
            return [tokens - 1]
        if self.last >= 0:
            return None
        self.last = newest
        if computed or tokens < prompt:
            self.job.fail(
                f"Prompt {self.number} has {prompt} tokens and the engine computed {tokens} of them at once, so its rows "
                f"are not together. Build the engine without enable_chunked_prefill and enable_prefix_caching."
            )
            return None
        if self.own is not None:
            return self.own
        if self.job.mode == LAST:
            return [prompt - 1]
        if self.job.mode == ALL:
            return range(prompt)
        return [position % prompt for position in self.job.chosen]


class Step:
    """What one job takes from one step of the engine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.numbers: list[int] = []
        self.counts: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self.within: list[list[int] | range] = []
        self.rows: list[int] = []
        self.values: dict[str, torch.Tensor | list[torch.Tensor]] = {}
        self._index: list[int] = []
        self._whole = True

    def add(self, ticket: Ticket, row: int, start: int, tokens: int, positions: list[int] | range) -> None:
        """Take ``positions`` of the request that has the batch's ``row`` and ``tokens`` rows from ``start``."""
        self.numbers.append(ticket.number)
        self.counts.append(len(positions))
        self.spans.append((start, tokens))
        self.within.append(positions)
        self.rows.append(row)
        self._whole = self._whole and len(self._index) == start and positions == range(tokens)
        self._index.extend(positions if start == 0 else [start + position for position in positions])

    @property
    def complete(self) -> bool:
        """Whether the model came by every value."""
        return len(self.values) == len(self.job.views)

    def narrowed(self, raw: Any, location: str, batcher: Any) -> Any:
        """``raw`` with every tensor of the step's rows narrowed to the wanted ones; as it is where all are wanted."""
        chosen = self.rows if location == _LOGITS else self._index
        if len(chosen) == batcher.total and (self._whole or chosen == list(range(batcher.total))):
            return raw
        indices: dict[torch.device, torch.Tensor] = {}

        def pick(tensor: torch.Tensor) -> torch.Tensor:
            axis = batcher._token_dim(tensor) if tensor.ndim else None
            if axis is None:
                return tensor
            if tensor.device not in indices:
                indices[tensor.device] = torch.tensor(chosen, dtype=torch.int64).to(tensor.device)
            return tensor.index_select(axis, indices[tensor.device])

        return apply(raw, pick, torch.Tensor)

    def gather(self, path: str, view: View, raw: Any, narrowed: Any, batcher: Any) -> None:
        """Keep a value of the wanted rows."""
        values: torch.Tensor | list[torch.Tensor]
        if isinstance(view, RowsView):
            rows = by_position(view, view.copy(narrowed)[0])
            if rows.shape[0] != sum(self.counts):
                raise RuntimeError(f"{path} has {rows.shape[0]} rows where {sum(self.counts)} were asked for.")
            values = rows if self.job.reduce is None else list(torch.split(rows, self.counts))
        else:
            values = [self._alone(view, number, raw, batcher) for number in range(len(self.numbers))]
        if self.job.mode == GENERATED and self.job.reduce is not None:
            for number, piece in zip(self.numbers, values, strict=True):
                self.job.held.setdefault(number, {}).setdefault(path, []).append(piece)
            self.values[path] = []
            return
        if self.job.reduce is not None:
            values = [self.job.reduce(piece).unsqueeze(0) for piece in values]
        self.values[path] = self._kept(values)

    def _alone(self, view: View, number: int, raw: Any, batcher: Any) -> torch.Tensor:
        """One request's value, for views that must see a request's rows and no other."""
        group = [self.rows[number], 1] if view.location == _LOGITS else list(self.spans[number])
        rows = by_position(view, view.copy(batcher.narrow(raw, group))[0])
        if position_axis(view) is None:
            return rows
        return rows.index_select(0, torch.tensor(list(self.within[number]), device=rows.device))

    def _kept(self, values: torch.Tensor | list[torch.Tensor]) -> torch.Tensor | list[torch.Tensor]:
        if isinstance(values, list):
            if len({value.shape[1:] for value in values}) > 1:
                return [to_host(value, self.job.dtype) for value in values]
            values = torch.cat(values)
        return to_host(values, self.job.dtype)


def by_position(view: View, served: torch.Tensor) -> torch.Tensor:
    """A served value as ``[positions, ...]``."""
    axis = position_axis(view)
    if axis is None:  # one row for each request: [batch, 1, vocab] or [batch, vocab]
        return served.squeeze(0) if served.ndim == 3 else served
    return served.movedim(axis, 1).squeeze(0) if "batch" in view.value.axes else served.movedim(axis, 0)


def to_host(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A contiguous copy in the host's memory. From a GPU it is still on its way until the device is synchronized."""
    tensor = tensor.to(dtype or tensor.dtype).contiguous()
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def reduction(asked: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The function that ``reduce=`` names: ``[positions, ...] -> [...]``."""
    if asked is None:
        return None
    if asked == "mean":
        return partial(torch.mean, dim=0)
    if asked == "sum":
        return partial(torch.sum, dim=0)
    if isinstance(asked, bytes):
        found: Callable[[torch.Tensor], torch.Tensor] = pickle.loads(asked)
        return found
    module, _, name = asked.partition(":")
    found = getattr(importlib.import_module(module), name)
    return found


class Gathering:
    """The open jobs of a worker and the requests that belong to them.

    Attributes:
        reporting: Whether this rank sends rows home. The others take part in the collectives alone.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.tickets: dict[str, Ticket] = {}
        self.reporting = True

    def admit(self, new_requests: Iterable[Any]) -> None:
        """Note the new requests that belong to an open job."""
        if not self.jobs:
            return
        for data in new_requests:
            mark = (getattr(data.sampling_params, "extra_args", None) or {}).get(MARK)
            if mark is not None and mark[0] in self.jobs and data.req_id not in self.tickets:
                self.tickets[data.req_id] = Ticket(self.jobs[mark[0]], mark[1], mark[2])

    def begin(self, spans: list[tuple[str, int]], states: dict[str, Any]) -> dict[str, Callable[..., None]]:
        """What this step has to gather, by location: functions of the value there and the interleaver."""
        if not self.tickets:
            return {}
        steps: dict[Job, Step] = {}
        start = 0
        for row, (request_id, tokens) in enumerate(spans):
            ticket, state = self.tickets.get(request_id), states.get(request_id)
            if ticket is not None and state is not None:
                positions = ticket.positions(state.num_computed_tokens, tokens, state.num_prompt_tokens)
                if positions is not None:
                    step = steps.get(ticket.job)
                    if step is None:
                        step = steps[ticket.job] = Step(ticket.job)
                    step.add(ticket, row, start, tokens, positions)
                if ticket.job.mode != GENERATED:
                    del self.tickets[request_id]
            start += tokens
        for job, step in steps.items() if self.reporting else ():
            job.steps.append(step)
        locations = {view.location for job in steps for view in job.views.values()}
        return {location: partial(self._serve, list(steps.values()), location) for location in locations}

    def _serve(self, steps: list[Step], location: str, interleaver: Any, value: Any) -> None:
        fragments = interleaver.fragments
        split = fragments is not None and fragments.enabled and fragments.fragmented(location)
        # A part of a value is made whole by every rank, or the ranks would wait for each other forever.
        if split:
            value, _ = fragments.whole(location, value)
        if not self.reporting:
            return
        for step in steps:
            wanted = {path: view for path, view in step.job.views.items() if view.location == location}
            if not wanted or step.job.error is not None:
                continue
            try:
                narrowed = step.narrowed(value, location, interleaver.batcher)
                for path, view in wanted.items():
                    step.gather(path, view, value, narrowed, interleaver.batcher)
            except Exception as error:  # noqa: BLE001  # a user's function fails as it likes, and others share this step
                step.job.fail(f"{type(error).__name__}: {error}")

    def open(self, model: Any, name: str, payload: bytes) -> None:
        """Begin a job."""
        self.jobs[name] = Job(model, payload)

    def close(self, name: str) -> None:
        """End a job and forget what it holds."""
        job = self.jobs.pop(name, None)
        self.tickets = {request: ticket for request, ticket in self.tickets.items() if ticket.job is not job}

    def take(self, name: str, finished: list[int]) -> list[bytes] | None:
        """The rows gathered so far, packed: a JSON header and one buffer for each value. ``None`` on the other ranks.

        Args:
            name: The job.
            finished: Prompts whose requests are over since the last call.
        """
        job = self.jobs[name]
        over = set(finished)
        self.tickets = {key: one for key, one in self.tickets.items() if one.job is not job or one.number not in over}
        if not self.reporting:
            return None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        done = [step for step in job.steps if step.complete]
        job.steps = [step for step in job.steps if not step.complete]
        numbers = [number for step in done for number in step.numbers]
        reduced = job.reduce is not None
        counts = [1 if reduced else count for step in done for count in step.counts]
        columns: dict[str, list[torch.Tensor]] = {path: [] for path in job.views}
        for path, column in columns.items():
            for step in done:
                value = step.values[path]
                column.extend(value if isinstance(value, list) else (value,))
        if reduced and job.mode == GENERATED:
            numbers, counts, columns = self._reduced(job, finished)
        header: dict[str, Any] = {"error": job.error, "prompts": numbers, "counts": counts, "values": []}
        buffers = []
        for path, column in columns.items():
            if not column:
                continue
            described: dict[str, Any] = {"path": path, "dtype": str(column[0].dtype).removeprefix("torch.")}
            if len({tensor.shape[1:] for tensor in column}) > 1:
                column = [piece for tensor, count in _counted(column, counts) for piece in torch.split(tensor, count)]
                described["shapes"] = [list(tensor.shape) for tensor in column]
                column = [tensor.reshape(-1) for tensor in column]
            else:
                described["shape"] = [sum(counts), *column[0].shape[1:]]
            header["values"].append(described)
            flat = column[0] if len(column) == 1 else torch.cat(column)
            buffers.append(flat.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return [json.dumps(header).encode(), *buffers]

    def _reduced(self, job: Job, finished: list[int]) -> tuple[list[int], list[int], dict[str, list[torch.Tensor]]]:
        """The reductions over the generated positions of the requests that are over."""
        assert job.reduce is not None
        numbers = [number for number in finished if number in job.held]
        columns: dict[str, list[torch.Tensor]] = {path: [] for path in job.views}
        for number in numbers:
            for path, pieces in job.held.pop(number).items():
                try:
                    columns[path].append(to_host(job.reduce(torch.cat(pieces)).unsqueeze(0), job.dtype))
                except Exception as error:  # noqa: BLE001  # a user's function fails as it likes
                    job.fail(f"{type(error).__name__}: {error}")
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return ([], [], {}) if job.error else (numbers, [1] * len(numbers), columns)


def _counted(column: list[torch.Tensor], counts: list[int]) -> Iterable[tuple[torch.Tensor, list[int]]]:
    """Each tensor with the counts of the requests in it."""
    remaining = iter(counts)
    for tensor in column:
        own: list[int] = []
        while sum(own) < tensor.shape[0]:
            own.append(next(remaining))
        yield tensor, own


class GathersRows:
    """The calls that reach a worker's jobs through vLLM's ``collective_rpc``."""

    model_runner: Any

    def nnterp_vllm_collect(self, verb: str, *arguments: Any) -> Any:
        """``open(name, payload)``, ``take(name, finished)`` or ``close(name)`` a job."""
        from vllm.distributed.parallel_state import get_tp_group

        gathering: Gathering = self.model_runner.nnsight_requests.gathering
        gathering.reporting = get_tp_group().rank_in_group == 0
        if verb == "open":
            return gathering.open(self.model_runner.nnsight_model, *arguments)
        return gathering.take(*arguments) if verb == "take" else gathering.close(*arguments)
