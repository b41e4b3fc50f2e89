"""The driver's engine: it asks the workers for values when a request can have left some, and otherwise not."""

from __future__ import annotations

from typing import Any

from nnsight.modeling.vllm.engines.engine import NNsightLLMEngine, attach

#: Where nnsight puts a block, or the names of installed ones, in a request.
_CARRIED = ("nnsight_mediator", "nnsight_edits")


class StandardLLMEngine(NNsightLLMEngine):
    """nnsight's engine without a call to every worker for each finished request that carried nothing.

    Attributes:
        bearing: Requests in flight that carry a block.
        installed: Blocks that every request runs (``model.edit()``), by nnsight's id.
        leaving: Whether an installed block was cleared while requests were in flight, which may still run it.
    """

    bearing: set[str]
    installed: set[str]
    leaving: bool

    @classmethod
    def take_over(cls, engine: Any) -> None:
        """Make nnsight's engine one of these."""
        engine.__class__ = cls
        engine.bearing, engine.installed, engine.leaving = set(), set(), False

    def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Note whether the request carries a block; see vLLM's ``LLMEngine.add_request``."""
        added = super().add_request(request_id, prompt, params, *args, **kwargs)
        if any(name in (getattr(params, "extra_args", None) or ()) for name in _CARRIED):
            self.bearing.add(request_id)
        return added

    def abort_request(self, request_ids: list[str], *args: Any, **kwargs: Any) -> Any:
        """Forget the requests too; see vLLM's ``LLMEngine.abort_request``."""
        self.bearing.difference_update(request_ids)
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
        if self.bearing or self.installed or self.leaving:
            outputs = super().step()
            self.bearing.difference_update(output.request_id for output in outputs if output.finished)
            self.leaving = self.leaving and self.has_unfinished_requests()
        else:
            outputs = super(NNsightLLMEngine, self).step()
        for output in outputs:
            if output.finished and not hasattr(output, "saves"):
                attach(output, {"saves": {}, "registered": {}, "error": None})
        return outputs
