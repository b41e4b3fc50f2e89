"""Loading: the weightless tree in the driver, and the engine with our worker in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from nnsight.modeling.vllm import VLLM

from . import guard
from .errors import UnsupportedEngine
from .passport import KEY, Passport
from .refusal import raised_by_driver
from .startup import meanwhile, spared_garbage
from .worker.shared_memory import common_memory


class EngineLoad(VLLM):
    """nnsight's ``VLLM`` with our worker, whose tree is built while the engine's processes start."""

    taps: tuple[str, ...]
    _passport: Passport
    _float32_products: str
    _tree_later = False
    _tokenizer: Any = None
    _tokenizer_source: Callable[[], Any] | None = None

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer. A worker loads it when a block asks, which most never do."""
        if self._tokenizer is None and self._tokenizer_source is not None:
            self._tokenizer = self._tokenizer_source()
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def _describe(self, module: torch.nn.Module) -> None:
        raise NotImplementedError

    def _load_meta(self, repo_id: str, **kwargs: Any) -> torch.nn.Module:
        with guard.hostless_accelerator(), guard.weightless_scalars(), guard.undecorated_transformers(), spared_garbage():
            module: torch.nn.Module = super()._load_meta(repo_id, **kwargs)
        self._describe(module)
        return module

    def _load(self, repo_id: str, **kwargs: Any) -> torch.nn.Module:
        guard.require_main_guard()
        self._WORKER_CLS = _worker_class()
        if self.taps:
            guard.require_breakable_graphs()
        additional = kwargs.pop("additional_config", None) or {}
        with guard.hostless_accelerator(), guard.engine_environment(), raised_by_driver() as refusal:
            stamp = {
                **self._passport.stamp(refusal),
                "float32_products": self._float32_products,
                "memory": common_memory(),
            }
            options = {**kwargs, "additional_config": {**additional, KEY: stamp}}
            if not self._tree_later:
                module: torch.nn.Module = super()._load(repo_id, **options)
                return module
            built: list[torch.nn.Module] = []
            self.__dict__["_module"] = torch.nn.Module()  # what nnsight takes for a tree that exists
            with meanwhile(lambda: built.append(self._weightless(repo_id, options))):
                super()._load(repo_id, **options)
            del self.__dict__["_module"]
        return built[0]

    def _weightless(self, repo_id: str, options: dict[str, Any]) -> torch.nn.Module:
        """The tree that is built beside the engine, in the process group that vLLM's layers ask for."""
        grouped = torch.distributed.is_initialized()
        if not grouped:
            VLLM._init_distributed()
        try:
            return self._load_meta(repo_id, **options)
        finally:
            if not grouped:
                VLLM._cleanup_distributed()

    def _init_distributed(self) -> None:
        if not self._tree_later:
            VLLM._init_distributed()

    def _load_sync(self, repo_id: str, **kwargs: Any) -> Any:
        from .llm_engine import StandardLLMEngine  # it imports vLLM, which not every host has

        llm = super()._load_sync(repo_id, **kwargs)
        StandardLLMEngine.take_over(llm.llm_engine)
        return llm


def _worker_class() -> str:
    """The worker for the platform that vLLM found.

    Raises:
        UnsupportedEngine: vLLM runs on something else than CUDA or the CPU.
    """
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return "nnterp_vllm_core.worker.cpu.StandardCPUWorker"
    if current_platform.is_cuda():
        return "nnterp_vllm_core.worker.cuda.StandardCUDAWorker"
    raise UnsupportedEngine(
        f"vLLM runs on {current_platform.device_name!r} here; standard values are served on CUDA and on vLLM's CPU engine."
    )
