"""Which rows of a step belong to a request, and what may not be done to rows that belong to others."""

from __future__ import annotations

from typing import Any

from nnsight.modeling.vllm.batching import VLLMBatcher

from ..errors import UnsupportedEngine


class StandardBatcher(VLLMBatcher):
    """nnsight's row arithmetic, with two additions.

    Attributes:
        swapped: How many native assignments (``block.output = ...``) have replaced tensors so far. A view compares it
            to know whether the rows it was served are still the ones that the model goes on with.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.swapped = 0

    def widen(self, full: Any, group: Any, edited: Any) -> Any:
        """Put a native assignment into the whole step."""
        self.swapped += 1
        return super().widen(full, group, edited)

    def gather_skip(self, running: Any, group: Any, replacement: Any) -> Any:
        """Take a native ``.skip(...)``.

        Raises:
            UnsupportedEngine: Other requests share the step. nnsight would find rows without a replacement after this
                block is done, and that error would end the engine for everyone.
        """
        if group is not None and group[1] != self.total:
            raise UnsupportedEngine(
                f"`.skip()` was asked for {group[1]} of the {self.total} rows of this step; the others belong to requests "
                f"that do not skip, and one forward computes all. Use `model.skip_layers(...)`, which changes this "
                f"request's rows alone."
            )
        return super().gather_skip(running, group, replacement)
