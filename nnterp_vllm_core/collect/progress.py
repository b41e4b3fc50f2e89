"""How far a collection is, and how fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class Bar:
    """A bar of prompts, with tokens per second behind it."""

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
def progress(total: int | None, quiet: bool) -> Iterator[Bar]:
    """A bar over ``total`` prompts, if that is known."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(total=total, desc="Collecting", unit="prompt", disable=quiet) as bar:
        yield Bar(bar)
