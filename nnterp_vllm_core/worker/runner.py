"""The model runner's half that is the same on every platform: the tree it builds and the blocks it places."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from nnsight.modeling.vllm.model_runners.GPUModelRunner import NNsightGPUModelRunner

from .. import scope
from ..errors import UnsupportedEngine
from ..guard import undecorated_transformers
from ..model import StandardizedVLLM
from ..passport import KEY, admit
from ..refusal import REFUSAL, left_for_driver
from .batcher import StandardBatcher
from .float32 import products
from .fragments import StandardFragments
from .handoffs import Handoffs
from .interleaver import StandardInterleaver
from .requests import StandardRequests
from .saves import Consignment
from .shared_memory import Outbox, common_memory


def standard_runner(base: type) -> type:
    """nnsight's runner over ``base``, vLLM's runner of one platform, building the standardized tree."""

    class StandardRunner(NNsightGPUModelRunner, base):
        def load_model(self, *args: Any, **kwargs: Any) -> None:
            from vllm.config import set_current_vllm_config
            from vllm.tokenizers import cached_tokenizer_from_config

            extra = self.vllm_config.additional_config
            with left_for_driver(extra[KEY][REFUSAL]):
                passport = admit(extra[KEY])
            # Past nnsight's own, which would build a native tree first.
            with self._spared_classes():
                base.load_model(self, *args, **kwargs)  # type: ignore[attr-defined]
            taps = extra.get("nnsight_taps", ())
            with set_current_vllm_config(self.vllm_config), left_for_driver(extra[KEY][REFUSAL]):
                model = (passport.model or StandardizedVLLM).over(
                    self.get_model(),
                    passport,
                    self.model_config.hf_config,
                    interleaver=StandardInterleaver(taps, fragments=StandardFragments()),
                )
            model._tokenizer_source = partial(cached_tokenizer_from_config, self.model_config)
            model.interleaver.batcher = StandardBatcher()
            model.interleaver.defer_exceptions = True
            self.nnsight_model = model
            model.interleaver.handoffs = Handoffs(model, permanent=bool(taps))
            self.nnsight_requests = StandardRequests(model.interleaver.handoffs)
            self.nnsight_persistent_objects = model._remoteable_persistent_objects()

        def collect_nnsight(self, *args: Any, **kwargs: Any) -> bytes | None:
            theirs = self.vllm_config.additional_config[KEY]["memory"]
            with Outbox(usable=theirs is not None and theirs == common_memory()) as outbox, Consignment():
                message: bytes | None = super().collect_nnsight(*args, **kwargs)
                return None if message is None else outbox.sealed(message)

        def _finish_erred(self, sampler_output: Any) -> None:
            # nnsight's looks at the tokenizer on every step; it is not loaded before somebody needs it.
            if any(one.mediator and one.mediator.exception for one in self.nnsight_requests.requests.values()):
                super()._finish_erred(sampler_output)

        def execute_model(self, *args: Any, **kwargs: Any) -> Any:
            scope.engine_step(opens=not scope.is_open())
            self.nnsight_requests.begin(self.input_batch, self.requests)
            with products(self._float32_products()):
                return super().execute_model(*args, **kwargs)

        def _dummy_run(self, *args: Any, **kwargs: Any) -> Any:
            # vLLM's warm-up and its recording of graphs compile kernels too.
            with products(self._float32_products()):
                return super()._dummy_run(*args, **kwargs)

        def _spared_classes(self) -> AbstractContextManager[None]:
            from vllm.config import CompilationMode

            compiles = self.vllm_config.compilation_config.mode not in (None, CompilationMode.NONE)
            return nullcontext() if compiles else undecorated_transformers()

        def _float32_products(self) -> str | None:
            if self.model_config.dtype is not torch.float32 or self.device.type != "cuda":
                return None
            return str(self.vllm_config.additional_config[KEY]["float32_products"])

    StandardRunner.__qualname__ = StandardRunner.__name__ = f"Standard{base.__name__}"
    return StandardRunner


def install(worker: Any, expected: type) -> None:
    """Give a worker's runner our class, once vLLM has built it.

    Raises:
        UnsupportedEngine: vLLM built another runner than the one that blocks can run in.
    """
    runner = worker.model_runner
    if type(runner) is not expected:
        raise UnsupportedEngine(
            f"vLLM built {type(runner).__module__}.{type(runner).__name__} and standard values are served in "
            f"{expected.__module__}.{expected.__name__}. Unset VLLM_USE_V2_MODEL_RUNNER."
        )
    runner.__class__ = standard_runner(expected)
