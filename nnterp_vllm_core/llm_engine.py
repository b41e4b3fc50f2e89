"""The driver's engine: it asks the workers for values when a request can have left some, and otherwise not."""

from __future__ import annotations

import pickle
from typing import Any

from nnsight.modeling.vllm.engines.engine import NNsightLLMEngine, attach, merge_collected

#: Where nnsight puts a block, or the names of installed ones, in a request.
_BLOCK = "nnsight_mediator"
_CARRIED = (_BLOCK, "nnsight_edits")
#: A block reads ``tracer.result`` off the tracer, so its pickle names a tracer's class.
_TRACER = b"Tracer"


class StandardLLMEngine(NNsightLLMEngine):
    """nnsight's engine without a call to every worker for each finished request that carried nothing.

    Attributes:
        bearing: Requests in flight that carry a block.
        awaiting: Those whose blocks may read ``tracer.result``; the workers are sent the outputs of these alone.
        installed: Blocks that every request runs (``model.edit()``), by nnsight's id.
        leaving: Whether an installed block was cleared while requests were in flight, which may still run it.
    """

    bearing: set[str]
    awaiting: set[str]
    installed: set[str]
    leaving: bool

    @classmethod
    def take_over(cls, engine: Any) -> None:
        """Make nnsight's engine one of these."""
        engine.__class__ = cls
        engine.bearing, engine.awaiting, engine.installed, engine.leaving = set(), set(), set(), False

    def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Note whether the request carries a block; see vLLM's ``LLMEngine.add_request``."""
        added = super().add_request(request_id, prompt, params, *args, **kwargs)
        carried = getattr(params, "extra_args", None) or {}
        if any(name in carried for name in _CARRIED):
            self.bearing.add(request_id)
            if _TRACER in carried.get(_BLOCK, b""):
                self.awaiting.add(request_id)
        return added

    def abort_request(self, request_ids: list[str], *args: Any, **kwargs: Any) -> Any:
        """Forget the requests too; see vLLM's ``LLMEngine.abort_request``."""
        self._forget(request_ids)
        return super().abort_request(request_ids, *args, **kwargs)

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Note which blocks are installed; see vLLM's ``LLMEngine.collective_rpc``."""
        if method == "nnsight_register":
            self.installed.add(args[0])
        elif method == "nnsight_clear_registered":
            self.installed.discard(args[0])
            self.leaving = self.leaving or self.has_unfinished_requests()
        return super().collective_rpc(method, timeout, args, kwargs)

    def step(self) -> Any:
        """One step; see vLLM's ``LLMEngine.step``. Finished outputs carry what was saved for them."""
        collects = bool(self.bearing or self.installed or self.leaving)
        outputs = super(NNsightLLMEngine, self).step()
        if collects:
            ended = {output.request_id: output for output in outputs if output.finished}
            if ended:
                self._collect(ended)
            self.leaving = self.leaving and self.has_unfinished_requests()
        for output in outputs:
            if output.finished and not hasattr(output, "saves"):
                attach(output, {"saves": {}, "registered": {}, "error": None})
        return outputs

    def _collect(self, ended: dict[str, Any]) -> None:
        """Put what the workers kept of requests that have ended on their outputs."""
        names = list(ended)
        read = {name: output for name, output in ended.items() if name in self.awaiting}
        collected = merge_collected(
            # Bytes, since vLLM's own encoding takes no plain object.
            self.engine_core.collective_rpc("collect_nnsight", args=(names, names, pickle.dumps(read) if read else None))
        )
        for name, output in ended.items():
            if name in collected:
                attach(output, collected[name])
        self._forget(names)

    def _forget(self, request_ids: list[str]) -> None:
        self.bearing.difference_update(request_ids)
        self.awaiting.difference_update(request_ids)
