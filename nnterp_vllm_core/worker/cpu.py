"""The worker of vLLM's CPU engine. Named to vLLM by the driver, imported in the engine's process alone."""

from __future__ import annotations

from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from .gathering import GathersRows
from .runner import install


class StandardCPUWorker(GathersRows, CPUWorker):
    """vLLM's CPU worker with blocks on its requests.

    nnsight's worker accepts vLLM's GPU runner alone, so its calls are borrowed rather than inherited.
    """

    def init_device(self) -> None:
        """Build the runner, then make it ours."""
        super().init_device()
        install(self, CPUModelRunner)

    collect_nnsight = NNsightGPUWorker.collect_nnsight
    nnsight_request_count = NNsightGPUWorker.nnsight_request_count
    nnsight_register = NNsightGPUWorker.nnsight_register
    nnsight_clear_registered = NNsightGPUWorker.nnsight_clear_registered
