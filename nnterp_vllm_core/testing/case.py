"""One checkpoint of a suite and what transformers says about it; one engine that runs it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import engines
from .blocks import Place, Runner
from .compare import FLOAT32, TOGETHER
from .reference import Pending, Reference

if TYPE_CHECKING:
    from .suite import ConformanceSuite

#: The block in which most single edits are made: one with blocks before and behind it.
MIDDLE = 1
#: Tokens that the decoding checks generate.
STEPS = 4

_ENGINE_OPTIONS: Mapping[str, Mapping[str, Any]] = {"vllm": {}, "backend": {"model_impl": "transformers"}}


def prompts(config: Mapping[str, Any]) -> list[list[int]]:
    """Token ids of four prompts: the usual one, a single token, a short one, and one longer than any window."""
    sizes = {**config, **config.get("text_config", {})}
    window = int(sizes.get("sliding_window") or 0)
    draw = random.Random(0)
    upper = min(int(sizes.get("vocab_size", 256)), 256)
    return [[draw.randrange(3, upper) for _ in range(length)] for length in (7, 1, 4, min(max(40, window + 8), 100))]


@dataclass
class Case:
    """A checkpoint, made and asked about ahead of time.

    Attributes:
        suite: The test class.
        variant: A key of ``suite.variants``, or ``""``.
        reference: The process that runs transformers.
        folder: The checkpoint.
    """

    suite: type[ConformanceSuite]
    variant: str
    reference: Reference
    folder: Path
    _asked: dict[Any, Pending] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """What the checkpoint's config says."""
        return {**self.suite.config, **self.suite.variants.get(self.variant, {})}

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Token ids; see `prompts`."""
        return prompts(self.config)

    @cached_property
    def vector(self) -> torch.Tensor:
        """``[hidden]``, what the checks steer with."""
        generator = torch.Generator().manual_seed(1)
        return torch.randn(int(self.opened["hidden_size"]), generator=generator)

    @property
    def who(self) -> str:
        """For messages: ``qwen2`` or ``qwen2 (tied)``."""
        return self.suite.model_type + (f" ({self.variant})" if self.variant else "")

    def ask(self, name: str, *arguments: Any) -> Any:
        """The reference process's answer, computed once.

        Args:
            name: A method of `bench.Bench` that takes the folder first.
            *arguments: The rest of its arguments; hashable but for tensors, which do not tell requests apart.
        """
        self.ahead(name, *arguments)
        return self._asked[self._key(name, arguments)].get()

    def ahead(self, name: str, *arguments: Any) -> None:
        """Send the request now, for `ask` to find it answered."""
        key = self._key(name, arguments)
        if key not in self._asked:
            self._asked[key] = self.reference.ask(name, str(self.folder), *arguments)

    @staticmethod
    def _key(name: str, arguments: tuple[Any, ...]) -> str:
        return repr((name, [it for it in arguments if not isinstance(it, torch.Tensor)]))

    def prepare(self) -> None:
        """Make the checkpoint, and ask for what every engine's checks will need."""
        if not self.folder.is_dir():
            made = self.reference.ask("make", str(self.folder), self.suite.model_type, self.config, self.suite.checkpoint)
            made.get()
            self.ahead("open", self.suite.family, self.suite.reference_attention)
            for ids in self.prompts:
                self.ahead("values", ids)

    @property
    def opened(self) -> dict[str, Any]:
        """Sizes read off transformers' modules."""
        found: dict[str, Any] = self.ask("open", self.suite.family, self.suite.reference_attention)
        return found

    def values(self, ids: list[int]) -> dict[str, torch.Tensor]:
        """Every value of a prefill under transformers, by key."""
        found: dict[str, torch.Tensor] = self.ask("values", ids)
        return found


@dataclass
class Subject:
    """An engine that runs a case.

    Attributes:
        case: The checkpoint and the reference.
        engine: ``"vllm"`` or ``"backend"``.
        model: The loaded `StandardizedVLLM`.
        before: What `patches.snapshot` saw before the engine was built.
    """

    case: Case
    engine: str
    model: Any
    before: dict[str, Any]
    _read: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def start(cls, case: Case, engine: str) -> Subject:
        """Load the case's checkpoint."""
        from .patches import snapshot

        before = snapshot()
        options = {**_ENGINE_OPTIONS[engine], **case.suite.engine_options}
        if case.suite.family is not None:
            options["family"] = case.suite.family
        return cls(case=case, engine=engine, model=engines.start(case.folder, **options), before=before)

    def stop(self) -> None:
        """End the engine."""
        model, self.model = self.model, None
        engines.stop(model)

    @property
    def suite(self) -> type[ConformanceSuite]:
        """The test class."""
        return self.case.suite

    @property
    def runner(self) -> Runner:
        """What runs the suite's blocks."""
        return Runner(model=self.model)

    @property
    def who(self) -> str:
        """For messages: ``qwen2 (tied) on vllm``."""
        return f"{self.case.who} on {self.engine}"

    @property
    def implementation(self) -> Any:
        """The declaration that applies to the loaded model."""
        return self.model.plan.implementation

    def allowed(self, name: str) -> float:
        """The bound for one value, by its name: the class's wider one, or `FLOAT32`."""
        return self._bound("", name, FLOAT32)

    def together(self, name: str) -> float:
        """The bound for one value of requests that run together, beside their solo runs: the class's, or `TOGETHER`."""
        return self._bound("together:", name, TOGETHER)

    def _bound(self, promise: str, name: str, usual: float) -> float:
        prefix = promise if self.engine == "vllm" else f"{promise}{self.engine}:"
        for key in (f"{prefix}{name}", f"{prefix}*"):
            if key in self.suite.tolerances:
                return self.suite.tolerances[key][0]
        return usual

    def read(self, prompt: int = 0) -> dict[str, torch.Tensor]:
        """Every value of a prefill on the engine, by key; read once a prompt."""
        if prompt not in self._read:
            self._read[prompt] = self.runner.read(self.case.prompts[prompt])
        return self._read[prompt]

    def writable(self) -> list[Place]:
        """The values whose edits are checked: every writable one of one block, the embeddings, and both ends."""
        last = len(self.model.layers) - 1
        ends = {"token_embeddings", "layers.0.layer_input", f"layers.{last}.layer_output"}
        middle = f"layers.{min(MIDDLE, last)}."
        return [
            place for place in self.runner.places() if place.writable and (place.key in ends or place.key.startswith(middle))
        ]
