"""The blocks that ride on the engine's requests, as nnsight tracks them, knowing which step each is at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nnsight.modeling.vllm.model_runners.GPUModelRunner import Requests

from ..errors import UnsupportedEngine
from ..mediator import StandardMediator
from .gathering import Gathering
from .handoffs import Handoffs
from .itinerary import Visits
from .saves import StandardRequest

_PREEMPTED = (
    "vLLM's cache was full, so it preempted this request, dropped what it had computed and computes the text again in one "
    "pass, without what the block wrote on earlier steps (to read a native location counts: its rows are live). Give the "
    "engine a larger cache (gpu_memory_utilization=, or VLLM_CPU_KVCACHE_SPACE on a CPU), fewer requests at once "
    "(max_num_seqs=) or shorter ones, and run it again."
)


def ended(batch: Any, states: dict[str, Any], wanted: Iterable[str]) -> set[str]:
    """Which of these requests have drawn their last token, though the engine computes one step more of them.

    With asynchronous scheduling, its default on CUDA, vLLM issues a step before it knows what the one before has drawn. A
    request that stops there is computed once more and the token is dropped. That step is no step of the request and its
    block must not see it. Reading the tokens waits for the device, so it is done for requests that can stop at a token
    alone.

    Args:
        batch: The runner's ``input_batch``, before the step.
        states: The runner's own state of each request.
        wanted: The requests whose blocks have begun.
    """
    drawn = getattr(batch, "prev_sampled_token_ids", None)
    rows = getattr(batch, "prev_req_id_to_index", None)
    if drawn is None or not rows:
        return set()
    stops: dict[str, set[int]] = {}
    for request_id in wanted:
        state = states.get(request_id)
        if state is None or request_id not in rows:
            continue
        settings = state.sampling_params
        tokens = {*(settings.stop_token_ids or ()), settings.eos_token_id} - {None}
        if tokens and len(state.output_token_ids) >= settings.min_tokens:
            stops[request_id] = tokens
    if not stops:
        return set()
    tokens_of = drawn[:, 0].tolist()
    return {request_id for request_id, tokens in stops.items() if tokens_of[rows[request_id]] in tokens}


class StandardRequests(Requests):
    """nnsight's bookkeeping for blocks that serve standard values.

    Attributes:
        over: Requests of this step that have ended before it; see `ended`.
        gathering: Bulk collections, whose requests carry no blocks.
        gathers: What they want of this step, by location.
        handoffs: The controllers of the model's modules, which only blocks and collections need.
        forwards: How many forwards there had been when it was last noted whose requests are out of the step.
    """

    def __init__(self, handoffs: Handoffs) -> None:
        super().__init__()
        self.handoffs = handoffs
        self.forwards = 0
        self.gathering = Gathering()
        self.gathers: dict[str, Any] = {}
        self.over: set[str] = set()

    def begin(self, batch: Any, states: dict[str, Any]) -> None:
        """Note, before a step, which requests with blocks have ended. The driver tells a collection (`Gathering.take`)."""
        started = [key for key, one in self.requests.items() if any(block.worker is not None for block in one.workers())]
        self.over = ended(batch, states, started)

    def add(self, new_requests: list[Any], persistent_objects: dict[str, Any]) -> None:
        """Take the blocks off new requests; see nnsight's ``Requests.add``."""
        super().add(new_requests, persistent_objects)
        self.gathering.admit(new_requests)
        for data in new_requests:
            request = self.requests.get(data.req_id)
            if request is not None and request.mediator is None and not request.copies and request.error is None:
                del self.requests[data.req_id]  # it carries nothing, so nothing is owed to it
                continue
            if request is not None and type(request) is not StandardRequest:
                request.__class__ = StandardRequest
            # Blocks installed for every request are copied by nnsight, as its own class.
            for copy in () if request is None else request.copies.values():
                if type(copy) is not StandardMediator:
                    copy.__class__ = StandardMediator
                    copy.step = copy.cached = 0

    def refuse_chunked(self, spans: list[tuple[str, int]], states: dict[str, Any]) -> None:
        """Refuse split prompts; see nnsight. It is the step's last call that knows the runner's states."""
        super().refuse_chunked(spans, states)
        self.place(spans, states)
        self.gathers = self.gathering.begin(spans, states)

    def scope(self, model: Any, spans: list[tuple[str, int]]) -> None:
        """Point every block at its own rows of this step; see nnsight's ``Requests.scope``."""
        visits: Visits = model.interleaver.counts
        started = [mediator for mediator in self.workers() if mediator.worker is not None]
        if not started:
            visits.clear()  # they are counted from a block's start, where it copies the counts
        for mediator in self.out:
            mediator.began += visits.forwards - self.forwards
        self.forwards = visits.forwards
        decodes, way = all(tokens == 1 for _, tokens in spans), visits.way
        if spans:  # vLLM also makes steps without a token, to tell the runner what has ended; they run no forward
            self.handoffs.begin(bool(self.requests or self.gathers), decodes, started)
        if visits.way is None and way is not None:
            self.counts.update(dict.fromkeys(way.once, visits.forwards))
        model.interleaver.gathers = self.gathers
        super().scope(model, spans)
        self.trim(spans)
        if self.over:
            self.leave_out(model.interleaver)

    def leave_out(self, interleaver: Any) -> None:
        """Keep the blocks of requests that have ended out of this step. One that failed stays, since it ends its request."""
        ended = {id(block) for key in self.over if key in self.requests for block in self.requests[key].workers()}
        for mediator in interleaver.mediators:
            if id(mediator) in ended and mediator.exception is None:
                mediator.batch_group = None
        interleaver.mediators = [mediator for mediator in interleaver.mediators if mediator.batch_group is not None]
        interleaver.reindex()

    def place(self, spans: list[tuple[str, int]], states: dict[str, Any]) -> None:
        """Note, before a block runs, which step its request is at and what the step left out.

        A request that vLLM preempted comes back as its whole text, computed in one pass: what its block wrote on earlier
        steps is not in that. Such a request fails, by name.

        Args:
            spans: Each scheduled request and how many tokens of it this step computes.
            states: The runner's own state of each request.
        """
        for request_id, tokens in spans:
            request, state = self.requests.get(request_id), states.get(request_id)
            if request is None or state is None:
                continue
            for mediator in request.workers():
                if mediator.worker is None:
                    mediator.cached = state.num_computed_tokens
                    continue
                mediator.step += 1
                if tokens > 1 and mediator.wrote and mediator.exception is None:
                    mediator.exception, mediator.pending = UnsupportedEngine(_PREEMPTED), None

    def trim(self, spans: list[tuple[str, int]]) -> None:
        """Show a resumed request its new token alone.

        vLLM recomputes a preempted request's whole text in one step. All rows but the last were served before.
        """
        for request_id, tokens in spans:
            request = self.requests.get(request_id)
            for mediator in () if request is None or tokens == 1 else request.workers():
                if mediator.step > 0 and mediator.batch_group is not None:
                    start, size = mediator.batch_group
                    mediator.batch_group = [start + size - 1, 1]
