"""The worker of vLLM's CUDA engine. Named to vLLM by the driver, imported in the engine's process alone."""

from __future__ import annotations

from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from .gathering import GathersRows
from .runner import install


class StandardCUDAWorker(GathersRows, NNsightGPUWorker):
    """vLLM's GPU worker with blocks on its requests."""

    def init_device(self) -> None:
        """Build the runner, then make it ours."""
        Worker.init_device(self)
        install(self, GPUModelRunner)
