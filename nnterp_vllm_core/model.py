"""`StandardizedVLLM`: nnsight's vLLM engine under the standard names and values."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from nnsight.modeling.vllm import VLLM
from nnsight.modeling.vllm.envoys import parallel_envoys

from . import guard, loader, merge, scope
from .checkpoint import raw_model_type, read_config, text_config
from .collect.collector import BulkCollection
from .contributions import Contributions
from .engine import engine_version
from .envoys import ModelValues, StandardValue
from .errors import Unavailable, UnsupportedFamily
from .extra_views import add_extras
from .family import Family
from .load import EngineLoad
from .mediator import StandardMediator
from .methods import StandardMethods
from .passport import Passport
from .plan import Plan, plan_for, with_names
from .protocol import VALUES
from .startup import in_processes
from .taps import resolve
from .tracer import StandardTracer
from .tree import before_head, bind
from .worker.float32 import PRECISIONS


class ServedLogits(StandardValue):
    """``logits``, which the engine's runner hands over outside any module."""

    def provide(self, model: Any, rows: torch.Tensor) -> Any:
        """Offer this step's logits, one row per request, to the blocks that wait for them."""
        return model.interleaver.handle(f"{model.path}.logits", rows)


class StandardizedVLLM(BulkCollection, StandardMethods, ModelValues, EngineLoad):
    """A vLLM engine whose internals are read and edited under standard names.

    Args:
        repo_id: A repo id or a checkpoint folder. Its config's ``model_type`` picks the family.
        family: A plugin module, its dotted name, or a `Family`, instead of the installed plugin.
        rename: More aliases, native path -> name, beside the family's.
        envoys: More envoy classes, by module class or path; they win over the family's and nnsight's.
        taps: On CUDA, what a block may reach while vLLM replays graphs: groups (``"standard"``, ``"boundary"``,
            ``"contributions"``, ``"attention"``), standard paths with ``*`` (``"layers.*.layer_output"``), or nnsight's
            own taps. Empty: no graphs, and every value is served. An engine in this process needs
            ``VLLM_USE_BREAKABLE_CUDAGRAPH=1`` before Python starts.
        float32_products: On CUDA with ``dtype="float32"``, the precision of attention's products: ``"ieee"``, or
            ``"tf32"``, which is faster and off by about 1e-3 of a value's scale.
        **kwargs: Everything else goes to nnsight's ``VLLM`` and on to vLLM: ``dispatch``, ``dtype``,
            ``max_model_len``, ``gpu_memory_utilization``, ``tensor_parallel_size``, ``mode``, ...

    Attributes:
        family: The `Family`; ``family.__name__`` is its plugin module.
        num_layers, hidden_size, vocab_size, num_heads, num_kv_heads, head_dim, intermediate_size: Sizes of the text
            model, readable without an engine.

    Raises:
        EngineNotInstalled: No vLLM is installed.
        CheckpointNotFound: ``repo_id`` names nothing that can be read.
        UnsupportedFamily, DuplicateFamily, BrokenPlugin: The family cannot be had.
        LoadVetoed: An installed plugin refuses this model.
        PluginMismatch: The engine's worker does not hold the same plugins.
        UnsupportedEngine: An option or platform on which values could not be served.
        MainGuardError: A script builds the engine at import time.
        TypeError: ``attn_implementation=``: vLLM's kernels are its own.
    """

    def __init__(
        self,
        repo_id: str | torch.nn.Module,
        *args: Any,
        family: ModuleType | str | Family | None = None,
        rename: Mapping[Any, Any] | None = None,
        envoys: Mapping[Any, type] | None = None,
        taps: str | Iterable[str] = (),
        float32_products: str = "ieee",
        **kwargs: Any,
    ) -> None:
        guard.require_engine()
        guard.require_options(kwargs)
        self._user_rename = dict(rename or {})
        self._user_envoys = dict(envoys or {})
        # nnsight keeps these two and reads them when it builds the tree. They are filled once the modules are known,
        # because the class of the blocks decides which declaration applies.
        self._tree_rename: dict[Any, Any] = {}
        self._tree_envoys: dict[Any, Any] = {}
        if isinstance(repo_id, str):
            self._open(repo_id, family, kwargs)
        if float32_products not in PRECISIONS:
            raise ValueError(f"float32_products={float32_products!r}: expected one of {PRECISIONS}.")
        self._float32_products = float32_products
        self._caches_prefixes = bool(kwargs.get("enable_prefix_caching"))
        # With taps nnsight reads the tree before it starts the engine; without, there is time for it while that starts.
        self._tree_later = bool(kwargs.get("dispatch")) and not taps and in_processes()
        options: dict[str, Any] = {"rename": self._tree_rename, "envoys": self._tree_envoys}
        options["taps"] = (taps,) if isinstance(taps, str) else tuple(taps)
        super().__init__(repo_id, *args, **options, **kwargs)
        self._settle_tree()
        if self.plan.without_logits:
            warnings.warn(f"{self.plan.without_logits}.", stacklevel=2)

    @classmethod
    def over(cls, module: torch.nn.Module, passport: Passport, config: Any, **kwargs: Any) -> StandardizedVLLM:
        """The worker's model: the standardized tree over a module that vLLM has loaded.

        Args:
            module: The loaded model.
            passport: What the driver said, already compared.
            config: The checkpoint's config, as vLLM holds it.
            **kwargs: nnsight's own, such as ``interleaver``.
        """
        model = cls.__new__(cls)
        model._contributions = passport.contributions
        model.family = passport.contributions.plugin.family
        model._sizes_from(config)
        model._user_rename, model._user_envoys = dict(passport.rename or {}), dict(passport.envoys or {})
        model._tree_rename, model._tree_envoys = {}, {}
        model._describe(module)
        options = {"rename": model._tree_rename, "envoys": model._tree_envoys}
        VLLM.__init__(model, module, **options, **kwargs)
        model._settle_tree()
        return model

    def _open(self, repo_id: str, family: ModuleType | str | Family | None, kwargs: dict[str, Any]) -> None:
        """Find the family and read the sizes, before vLLM is imported."""
        named = raw_model_type(repo_id)
        plugin = None
        if named is not None and family is None:
            plugin = loader.find(named)  # an unknown type: our message, not transformers'
        try:
            config = read_config(repo_id, **kwargs)
        except ValueError as error:
            raise UnsupportedFamily(f"{repo_id!r}: transformers cannot read its config: {error}") from error
        model_type = config.model_type
        if family is not None:
            plugin = loader.override(family, model_type)
        elif plugin is None or model_type != named:
            plugin = loader.find(model_type)
        loader.warn_outside(plugin, engine_version())
        self.family: Family = plugin.family
        self._sizes_from(config)
        self._contributions = Contributions.to(plugin, model_type, repo_id)
        self._contributions.loading(kwargs)
        self._passport = Passport(
            contributions=self._contributions,
            override=family,
            rename=self._user_rename,
            envoys=self._user_envoys,
            model=None if type(self) is StandardizedVLLM else type(self),
        )

    def trace(self, *inputs: Any, **kwargs: Any) -> Any:
        """Open a trace block; see nnsight's ``VLLM.trace`` for its settings.

        Raises:
            UnsupportedEngine: ``scan=`` or ``validate=``: no forward runs in this process that could be tried out first.
                ``attention_mask=``: nothing is padded.
        """
        guard.require_trace(kwargs)
        scope.close_left_open()
        kwargs.setdefault("tracer_cls", StandardTracer)
        return super().trace(*inputs, **kwargs)

    def _sizes_from(self, config: Any) -> None:
        text = text_config(config)
        self.num_layers = self.family.size("num_layers", text)
        self.hidden_size = self.family.size("hidden_size", text)
        self.vocab_size = self.family.size("vocab_size", text)
        self.num_heads = self.family.size("num_heads", text)
        self.num_kv_heads = self.family.size("num_kv_heads", text)
        self.head_dim = self.family.size("head_dim", text)
        self.intermediate_size = self.family.size("intermediate_size", text)

    def _describe(self, module: torch.nn.Module) -> None:
        """Choose the declaration for the loaded modules and fill nnsight's two maps from it."""
        self.plan: Plan = plan_for(self.family, module)
        self._tree_rename.update(with_names(self.plan.rename, self._user_rename))
        self._tree_envoys.update({**parallel_envoys(), **self.plan.envoys, **self._user_envoys})

    def _settle_tree(self) -> None:
        """Give every envoy its views, and an id to travel under instead of its tree."""
        bind(self, self.plan)
        self._extras = add_extras(self, self.plan.implementation, self._contributions.extras())
        for envoy in self.modules():
            envoy.__dict__["_persistent_id"] = f"Envoy:{envoy.path}"

    def _resolve_taps(self, module: torch.nn.Module) -> tuple[str, ...]:
        locations, native = resolve(self.taps, module, self.plan)
        self.taps = tuple(native)
        resolved: tuple[str, ...] = super()._resolve_taps(module) if native else ()
        return tuple(dict.fromkeys((*locations, *resolved)))

    def _prompt(self, *inputs: Any) -> Any:
        prompt = super()._prompt(*inputs)
        if not self._caches_prefixes:
            return prompt
        # Rows that a block reads have to be computed, and rows that it edits must not be kept for anybody else.
        apart = {"cache_salt": uuid.uuid4().hex}
        return {**apart, **({"prompt": prompt} if isinstance(prompt, str) else prompt)}

    def _attach_mediators(self, params: list[Any], **kwargs: Any) -> list[Any]:
        # The class travels with the block, so that the worker rebuilds it as one that serves standard values.
        for mediator in self.interleaver.mediators:
            mediator.__class__ = StandardMediator
        if in_processes() and any(one.stop and one.max_tokens != 1 for one in params):
            warnings.warn(
                "stop= is found in the text by this process, when the engine in its own has gone on already, so a block may "
                "see more steps than there are tokens. Keep as many as len(tracer.result.outputs[0].token_ids), or stop at "
                "stop_token_ids=.",
                stacklevel=2,
            )
        attached: list[Any] = super()._attach_mediators(params, **kwargs)
        for one in params:
            one.skip_clone = True  # each request has settings of its own, which vLLM would copy all the way down
        return attached

    def _call(self, prompts: list[Any], params: list[Any], lora_requests: list[Any], **kwargs: Any) -> Any:
        # nnsight's, without vLLM's two progress bars for each trace.
        mediators = self._attach_mediators(params, **kwargs)
        outputs = self.vllm_entrypoint.generate(prompts, sampling_params=params, lora_request=lora_requests, use_tqdm=False)
        self._collect(mediators, outputs)
        return outputs

    @staticmethod
    def _collect(mediators: list[Any], outputs: list[Any]) -> None:
        merge.unite(mediators, outputs)
        VLLM._collect(mediators, outputs)

    def _remoteable_persistent_objects(self) -> dict[str, Any]:
        objects: dict[str, Any] = super()._remoteable_persistent_objects()
        return objects | {f"Envoy:{envoy.path}": envoy for envoy in self.modules()}

    def _unembed(self, rows: torch.Tensor) -> torch.Tensor:
        if reason := self.plan.without_logits:
            raise Unavailable(f"project_on_vocab ends in the logits, which are unavailable: {reason}.")
        with self._stood_down():
            rows = before_head(self._module, self.plan.implementation, rows)
            logits: torch.Tensor = self._module.compute_logits(rows)
        return logits

    @contextlib.contextmanager
    def _stood_down(self) -> Iterator[None]:
        """Run modules ad hoc without the trace taking them for the forward pass."""
        interleaving, self.interleaver.interleaving = self.interleaver.interleaving, False
        try:
            yield
        finally:
            self.interleaver.interleaving = interleaving

    taps: tuple[str, ...]

    # nnsight's runner reads this attribute off the class to offer the logits, so it stands on the class itself.
    logits = ServedLogits(VALUES["logits"])
