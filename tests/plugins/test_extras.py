"""Values that a plugin adds to somebody else's family are served like the standard ones, in the engine's worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nnterp_vllm_core.errors import DeclarationError
from nnterp_vllm_core.extra import Extra
from nnterp_vllm_core.family import At

from .installs import Site

PLUGIN = """
import warnings
from nnterp_vllm_core.extra import Extra
from nnterp_vllm_core.family import At
from nnterp_vllm_core.hookspecs import hookimpl

@hookimpl
def nnterp_vllm_loading(repo_id, options):
    if options.get("dtype") == "float16":
        raise ValueError("the dictionary was trained in float32")
    warnings.warn("dictionary: a tiny model")

@hookimpl
def nnterp_vllm_values(family, model_type):
    if model_type != "llama" or not family.__name__.endswith("llama"):
        return []
    return [
        Extra(name="features", host="mlp", axes=("batch", "seq", "features"), meaning="What a dictionary sees.",
              of="mlp_output", compute="dictionary_maths:features", layers=(1, 2)),
        Extra(name="doubled_stream", host="layer", axes=("batch", "seq", "hidden"), meaning="Twice the stream.",
              of="layer_output", compute="dictionary_maths:twice"),
        Extra(name="top_logit", host="model", axes=("batch", "1"), meaning="The largest logit.",
              of="logits", compute="dictionary_maths:top"),
        Extra(name="gate", host="mlp", axes=("batch", "seq", "intermediate"), meaning="The gated activation.",
              at=At("mlp.act_fn.output")),
    ]
"""
MATHS = """
import torch

def features(value, layer):
    return torch.relu(value[..., :8]) + layer

def twice(value, layer):
    return value * 2

def top(value, layer):
    assert layer is None
    return value.amax(-1)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A plugin that adds values to llama, and the module that computes them."""
    site = Site(tmp_path_factory.mktemp("site"))
    site.install("dictionary", source=PLUGIN, plugin=True)
    (site.folder / "dictionary_maths.py").write_text(MATHS)
    return site


@pytest.fixture(scope="module", params=["0", "1"], ids=["in process", "spawned"])
def seen(request: pytest.FixtureRequest, site: Site, checkpoints: dict[str, Path]) -> dict[str, Any]:
    """What a program saw on the engine."""
    program = Path(__file__).with_name("extras_program.py")
    done = site.run(str(program), str(checkpoints["llama"]), VLLM_ENABLE_V1_MULTIPROCESSING=request.param)
    assert done.returncode == 0, done.stderr
    line: dict[str, Any] = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    return line


def test_a_value_is_computed_in_the_worker_from_the_standard_value(seen: dict[str, Any]) -> None:
    assert seen["features"]
    assert seen["doubled"]
    assert seen["top"]
    assert seen["axes"] == [[1, len_prompt(seen), 8], [1, len_prompt(seen), 128], [1, 1]]


def len_prompt(seen: dict[str, Any]) -> int:
    """Tokens of the prompt, as the value at a place of its own tells them."""
    batch, seq, _ = seen["gate"]
    assert batch == 1
    return int(seq)


def test_an_edit_of_the_standard_value_counts_and_a_read_changes_nothing(seen: dict[str, Any]) -> None:
    assert seen["after an edit"]
    assert seen["read leaves no trace"]


def test_it_is_read_only_and_says_where_it_is(seen: dict[str, Any]) -> None:
    assert seen["assigned"].startswith("ReadOnlyValue: model.model.layers.1.mlp.features cannot be assigned")
    assert seen["edited"].startswith("ReadOnlyValue: model.model.layers.1.mlp.features was edited in place")
    assert seen["elsewhere"] == (
        "Unavailable: model.model.layers.0.mlp.features is unavailable: its plugin has it for the layers [1, 2] alone"
    )


def test_support_lists_it_before_anything_runs(seen: dict[str, Any]) -> None:
    assert seen["support"] == {
        "layers.*.mlp.features": "served (read-only; not in layers [0, 3]: its plugin has it for the layers [1, 2] alone)",
        "top_logit": "served (read-only)",
        "layers.*.mlp.gate": "served (read-only)",
    }
    assert seen["doc"] == "What a dictionary sees.\n\nAxes ``[batch, seq, features]``; read-only."


def test_a_plugin_can_veto_a_load_or_warn_about_it(seen: dict[str, Any], checkpoints: dict[str, Path]) -> None:
    text, cause = seen["vetoed"]
    assert text == (
        f"dictionary 1.0 refuses to load {str(checkpoints['llama'])!r} (model_type 'llama'): ValueError: the dictionary was "
        f"trained in float32"
    )
    assert cause == "ValueError"
    assert seen["warned"] == ["dictionary: a tiny model"]


ON_TRANSFORMERS = """
import sys, torch
from nnterp_vllm_core import StandardizedTransformer
model = StandardizedTransformer(sys.argv[1], dispatch=True, dtype=torch.float32)
layer = model.layers[1]
with model.trace("The Eiffel Tower is in"):
    gate = layer.mlp.gate.save()
    mlp = layer.mlp.mlp_output.save()
    features = layer.mlp.features.save()
    doubled = layer.doubled_stream.save()
    stream = layer.layer_output.save()
    top = model.top_logit.save()
    logits = model.logits.save()
same = [torch.equal(features, torch.relu(mlp[..., :8]) + 1), torch.equal(doubled, stream * 2)]
print(*same, torch.equal(top, logits.amax(-1)))
print(gate.shape[-1], features.requires_grad)
with model.trace("The Eiffel Tower is in"):
    layer.mlp.mlp_output[:] = 3.0
    edited = layer.mlp.features.save()
print(bool((edited == 4.0).all()), model.support()["layers.*.mlp.features"])
try:
    with model.trace("The Eiffel Tower is in"):
        layer.mlp.features = layer.mlp.features * 2
except Exception as error:
    print(str(error).strip().splitlines()[-1])
"""


def test_the_same_plugin_serves_transformers(site: Site, checkpoints: dict[str, Path]) -> None:
    done = site.run("-c", ON_TRANSFORMERS, str(checkpoints["llama"]))
    assert done.returncode == 0, done.stderr
    same, gradients, edited, assigned = done.stdout.splitlines()
    assert same == "True True True"
    assert gradients == "256 True"
    assert edited == "True served (read-only; not in layers [0, 3]: its plugin has it for the layers [1, 2] alone)"
    assert "model.model.layers.1.mlp.features cannot be assigned" in assigned


GOOD: dict[str, Any] = {"name": "features", "host": "mlp", "axes": ("batch",), "meaning": "Some."}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "two words"}, "a block reads it as an attribute"),
        ({"name": "_private"}, "a block reads it as an attribute"),
        ({"name": "layer_input"}, "this is a standard value's name"),
        ({"axes": ["batch"]}, "axes and layers are tuples; got ['batch'] and None"),
        ({"meaning": " "}, "meaning is empty"),
        ({"of": None, "compute": None}, "give either at= (a place) or of= (a standard value)"),
        ({"at": At("mlp.output")}, "give either at= (a place) or of= (a standard value)"),
        ({"compute": None}, "of= and compute= belong together"),
        ({"of": "loudness"}, "of='loudness' is no standard tensor value"),
        ({"of": "input_size"}, "of='input_size' is no standard tensor value"),
        ({"of": "logits"}, "both must stand on the model or both in a layer"),
        ({"compute": "maths.features"}, "is not of the form 'module:function'"),
        ({"host": "model", "of": "logits", "layers": (1,)}, "means nothing on the model"),
    ],
)
def test_an_extra_that_contradicts_itself_is_refused_where_it_is_written(change: dict[str, Any], text: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Extra(**{**GOOD, "of": "mlp_output", "compute": "maths:features", **change})
    assert text in str(caught.value)
