"""What ``dtype="float32"`` means on CUDA.

vLLM computes float32 attention with a Triton kernel, and Triton rounds the inputs of a float32 product to tf32 (10 bits of
mantissa) unless told otherwise. Values inside and after attention are then off by 1e-3 of their scale. Triton reads the
choice from the environment when it compiles a kernel, so it is set around our engine's own steps and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

VARIABLE = "TRITON_F32_DEFAULT"
PRECISIONS = ("ieee", "tf32")


@contextlib.contextmanager
def products(precision: str | None) -> Iterator[None]:
    """Compile Triton's float32 products at ``precision`` inside; ``None`` changes nothing."""
    if precision is None:
        yield
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = precision
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
