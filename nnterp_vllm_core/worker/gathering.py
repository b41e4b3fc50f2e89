"""Bulk collection in the engine's worker: the wanted rows of all requests of a step, taken with one copy per value.

No block runs for these requests. The driver opens a job once (which values, which positions), and a request brings only
its number. When the model is at a location that an open job wants, the rows of all its requests in this step are copied
together. They wait here until the driver takes them, many requests in one buffer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from ..collect.selection import GENERATED
from .rows import Job, Step, Ticket, to_host

#: The key of a request's ticket in vLLM's ``extra_args``: the job's name, the prompt's number and its own positions.
MARK = "nnterp_vllm_collect"


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

    def take(self, name: str, finished: list[int], fed_back: list[int]) -> list[bytes] | None:
        """The rows gathered so far, packed: a JSON header and one buffer for each value. ``None`` on the other ranks.

        Args:
            name: The job.
            finished: Prompts whose requests are over since the last call.
            fed_back: How many of the tokens that each of them generated were fed back; what came later is not reduced.
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
            numbers, counts, columns = self._reduced(job, dict(zip(finished, fed_back, strict=True)))
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

    def _reduced(self, job: Job, fed_back: dict[int, int]) -> tuple[list[int], list[int], dict[str, list[torch.Tensor]]]:
        """The reductions over the generated positions of the requests that are over."""
        assert job.reduce is not None
        held = {number: job.held.pop(number) for number in fed_back if number in job.held}
        numbers = [number for number in held if fed_back[number] > 0]
        columns: dict[str, list[torch.Tensor]] = {path: [] for path in job.views}
        for number in numbers:
            for path, pieces in held[number].items():
                try:
                    rows = torch.cat(pieces)[: fed_back[number]]
                    columns[path].append(to_host(job.reduce(rows).unsqueeze(0), job.dtype))
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
        """``open(name, payload)``, ``take(name, finished, fed_back)`` or ``close(name)`` a job."""
        from vllm.distributed.parallel_state import get_tp_group

        gathering: Gathering = self.model_runner.nnsight_requests.gathering
        gathering.reporting = get_tp_group().rank_in_group == 0
        if verb == "open":
            return gathering.open(self.model_runner.nnsight_model, *arguments)
        return gathering.take(*arguments) if verb == "take" else gathering.close(*arguments)
