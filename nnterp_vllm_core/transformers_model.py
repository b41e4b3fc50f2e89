"""`StandardizedTransformer`: nnsight's transformers model under the same names, values and layouts as the vLLM engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch
from nnsight.modeling.transformers import TransformersModel

from . import interior, loader
from .checkpoint import raw_model_type, read_config, text_config
from .contributions import Contributions
from .envoys import ModelValues, StandardValue
from .errors import UnsupportedEngine, UnsupportedFamily
from .extra_views import add_extras
from .family import SIZES, Family, Implementation
from .live_tree import bind
from .mediator import StandardMediator
from .methods import StandardMethods
from .places import first_block
from .plan import ROOT, Plan, with_names
from .protocol import VALUES
from .sampling import SAMPLING, Sampler, generation_settings, taken_from
from .tree import before_head

#: Arguments of the vLLM engine that mean nothing here, with what to use instead.
_VLLM_ONLY = {
    "gpu_memory_utilization": "transformers takes what memory it needs",
    "max_model_len": "the context is the checkpoint's own",
    "max_num_seqs": "a trace runs the rows that it is given",
    "tensor_parallel_size": "use device_map= to spread a model over devices",
    "taps": "every location is served; there are no graphs to tap",
    "mode": "traces run synchronously",
    "enforce_eager": "the forward is always eager",
    "model_impl": "this engine is transformers itself",
    "enable_prefix_caching": "there is no prefix cache",
    "enable_chunked_prefill": "a prompt is always computed whole",
    "load_format": "weights are read from the checkpoint",
}


class StandardizedTransformer(StandardMethods, ModelValues, TransformersModel):
    """A transformers model whose internals are read and edited under standard names.

    The values, layouts, methods and errors are those of `StandardizedVLLM`. What differs: the batch axis is a batch (left
    padded, see ``attention_mask``), a plain ``trace(prompt)`` is one forward with the logits of every position, every
    value can be written, the attention pattern included, keys on a decode step are the whole cache's, and gradients work.

    Args:
        repo_id: A repo id, a checkpoint folder, or a loaded transformers model.
        family: A plugin module, its dotted name, or a `Family`, instead of the installed plugin.
        rename: More aliases, native path -> name, beside the family's.
        envoys: More envoy classes, by module class or path; they win over the family's.
        attn_implementation: ``None`` or ``"eager"`` computes attention eagerly and serves its interior. Any other kernel
            of transformers is used as it is, and the interior is unavailable.
        **kwargs: Everything else goes to nnsight's ``TransformersModel``: ``dispatch``, ``dtype``, ``device_map``, ...

    Raises:
        UnsupportedEngine: An argument that only the vLLM engine has; the message says what to use.
        CheckpointNotFound, UnsupportedFamily, DuplicateFamily, BrokenPlugin: As for `StandardizedVLLM`.
    """

    def __init__(
        self,
        repo_id: str | torch.nn.Module,
        *args: Any,
        family: ModuleType | str | Family | None = None,
        rename: Mapping[Any, Any] | None = None,
        envoys: Mapping[Any, type] | None = None,
        attn_implementation: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name in sorted(_VLLM_ONLY.keys() & kwargs.keys()):
            raise UnsupportedEngine(
                f"{name}= is the vLLM engine's and StandardizedTransformer has none: {_VLLM_ONLY[name]}. "
                f"StandardizedVLLM takes it."
            )
        self._user_rename = dict(rename or {})
        self._user_envoys = dict(envoys or {})
        self._tree_rename: dict[Any, Any] = {}
        self._tree_envoys: dict[Any, Any] = {}
        if isinstance(repo_id, torch.nn.Module):
            config: Any = repo_id.config
        else:
            raw = raw_model_type(repo_id)
            if raw is not None and family is None:
                loader.find(raw)
            config = read_config(repo_id, **kwargs)
        plugin = loader.find(config.model_type) if family is None else loader.override(family, config.model_type)
        name = repo_id if isinstance(repo_id, str) else str(getattr(config, "name_or_path", ""))
        self._contributions = Contributions.to(plugin, config.model_type, name)
        self._contributions.loading(kwargs)
        self.family: Family = plugin.family
        if self.family.transformers is None:
            raise UnsupportedFamily(f"Family {self.family.__name__} declares no transformers implementation.")
        self._declared: Implementation = self.family.transformers
        for size in SIZES:
            setattr(self, size, self.family.size(size, text_config(config)))
        self._interior = self._choose_attention(attn_implementation, repo_id)
        options: dict[str, Any] = {"rename": self._tree_rename, "envoys": self._tree_envoys}
        if isinstance(repo_id, str):
            if self._interior is None:
                options["attn_implementation"] = interior.NAME
            elif attn_implementation is not None:
                options["attn_implementation"] = attn_implementation
        # Unset, transformers asks the hub for the task, which a folder has none of.
        kwargs.setdefault("task", "text-generation")
        super().__init__(repo_id, *args, **options, **kwargs)
        self._settle_tree()

    def _choose_attention(self, asked: str | None, repo_id: str | torch.nn.Module) -> str | None:
        """``None`` where the interior is served, else the reason why not."""
        if not interior.dispatches(self._declared):
            return (
                f"transformers computes this family's attention in one function of its own ({self._declared.source}), "
                f"which offers no place to read from"
            )
        if asked not in (None, "eager", interior.NAME):
            return f"attn_implementation={asked!r} computes it inside a kernel; leave attn_implementation out"
        interior.register()
        if isinstance(repo_id, torch.nn.Module):
            repo_id.set_attn_implementation(interior.NAME)  # type: ignore[operator]
        return None

    def _describe(self, module: torch.nn.Module) -> None:
        block = first_block(module, self._declared)
        if block is None or type(block).__name__ not in self._declared.blocks:
            raise UnsupportedEngine(
                f"Family {self.family.__name__} declares transformers' {', '.join(self._declared.blocks)} and this model "
                f"({type(module).__name__}) has {'no blocks there' if block is None else type(block).__name__}."
            )
        if self._interior is None:
            interior.mount(module, self._declared)
        self.plan: Plan = Plan(family=self.family, implementation=self._declared)
        self._tree_rename.update(with_names(self.plan.rename, self._user_rename))
        self._tree_envoys.update({**self.plan.envoys, **self._user_envoys})

    def _load_meta(self, repo_id: str, *args: Any, **kwargs: Any) -> torch.nn.Module:
        module: torch.nn.Module = super()._load_meta(repo_id, *args, **kwargs)
        self._describe(module)
        return module

    def _load(self, repo_id: str, *args: Any, **kwargs: Any) -> torch.nn.Module:
        module: torch.nn.Module = super()._load(repo_id, *args, **kwargs)
        self._describe(module)
        return module

    def _wrap(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        wrapped: torch.nn.Module = super()._wrap(module, *args, **kwargs)
        self._describe(wrapped)
        return wrapped

    def _settle_tree(self) -> None:
        bind(self, self.plan, self._interior)
        self._extras = add_extras(self, self.plan.implementation, self._contributions.extras())
        self._sampler = Sampler()
        # Beside nnsight's own `generator`: a module of ours that the drawn tokens pass through.
        self._sampling_envoy = self._wrap_standalone("sampled", self._sampler.point)

    def _wrap_standalone(self, name: str, module: torch.nn.Module) -> Any:
        from nnsight.intervention.envoy import Envoy

        envoy = Envoy(module, path=f"{ROOT}.{name}", interleaver=self.interleaver, parent=self)
        self._children.append(envoy)
        return envoy

    @property
    def samples(self) -> torch.Tensor:
        """The token ids drawn at this step, ``[batch, 1]``; assign to force others. There when the trace generates."""
        drawn: torch.Tensor = self._sampling_envoy.output
        return drawn

    @samples.setter
    def samples(self, ids: torch.Tensor) -> None:
        self._sampling_envoy.output = ids

    def trace(self, *inputs: Any, fn: Any = None, **kwargs: Any) -> Any:
        """Open a trace: one forward, or, with sampling settings as on the vLLM engine, a generation.

        ``trace(prompt)`` runs one forward. ``trace(prompt, temperature=0.0, max_tokens=3)`` generates, under
        ``tracer.iter`` one step a token, with vLLM's names and defaults for the settings it shares: ``temperature``,
        ``max_tokens``, ``top_p``, ``top_k``, ``min_tokens``, ``ignore_eos``, ``seed``. ``tracer.invoke`` takes them too, the
        same on every invoke.
        """
        if fn is None and SAMPLING & kwargs.keys():
            fn = self._generating({name: kwargs.pop(name) for name in sorted(SAMPLING & kwargs.keys())})
        return super().trace(*inputs, fn=fn, **kwargs)

    def _generating(self, settings: dict[str, Any]) -> Any:
        fn: Any = partial(self._generate_as_vllm, settings)
        fn.__name__ = "generate"
        return fn

    def _generate_as_vllm(self, settings: dict[str, Any], *inputs: Any, **kwargs: Any) -> Any:
        options = generation_settings(settings, self.tokenizer, self._sampler)
        return self.pipeline.model.generate(*inputs, **kwargs, **options)

    def interleave(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Run ``fn`` with this trace's blocks; see nnsight's ``Envoy.interleave``.

        Raises:
            UnsupportedEngine: Invokes have settings of their own that differ: they are rows of one batch.
        """
        batcher = kwargs.get("batcher")
        generating = getattr(fn, "func", None) == self._generate_as_vllm
        # Under `generate` and `pipe` they are those functions' own.
        if batcher is not None and (generating or fn == self._call) and (settings := taken_from(batcher.invokes)):
            fn = self._generating({**(fn.args[0] if generating else {}), **settings})
        if not self.dispatched:
            self.dispatch()
        for mediator in [*self._edits, *self.interleaver.mediators]:
            mediator.__class__ = StandardMediator
            mediator.step = mediator.cached = 0
        return super().interleave(fn, *args, **kwargs)

    def _unembed(self, rows: torch.Tensor) -> torch.Tensor:
        with self._stood_down():
            module: Any = self._module
            logits: torch.Tensor = module.get_output_embeddings()(before_head(module, self._declared, rows))
        return head_scaled(logits, text_config(module.config), self._declared)

    @contextlib.contextmanager
    def _stood_down(self) -> Iterator[None]:
        interleaving, self.interleaver.interleaving = self.interleaver.interleaving, False
        try:
            yield
        finally:
            self.interleaver.interleaving = interleaving

    logits = StandardValue(VALUES["logits"])


def head_scaled(logits: torch.Tensor, config: Any, implementation: Implementation) -> torch.Tensor:
    """What transformers' models do to the head's output: a scale or a division, then a softcap, by the config's own keys."""
    for operation, key in implementation.head:
        number = getattr(config, key, None)
        if number is None:
            continue
        if operation == "times":
            logits = logits * number
        elif operation == "divided":
            logits = logits / number
        else:
            logits = torch.tanh(logits / number) * number
    return logits
