"""Plugins that take part in a load: who is asked, and what happens when one fails."""

from __future__ import annotations

import pytest

from .installs import Site, family

ASK = """
from nnterp_vllm_core import NnterpVLLMError
from nnterp_vllm_core.contributions import Contributions, function_of
from nnterp_vllm_core.loader import find
try:
    all_of_them = Contributions.to(find("toy"), "toy", "me/toy")
    print([one.who for one in all_of_them.contributors])
    for extra in all_of_them.extras():
        print(extra.name, function_of(extra))
    all_of_them.loading({"dtype": "float32"})
except NnterpVLLMError as error:
    print(type(error).__name__, error, sep=": ")
"""

HEAD = """
from nnterp_vllm_core.extra import Extra
from nnterp_vllm_core.hookspecs import hookimpl
"""


def extra(name: str, compute: str = "os.path:join") -> str:
    """A plugin that adds one value."""
    return f"""{HEAD}
@hookimpl
def nnterp_vllm_values(repo_id):
    assert repo_id == "me/toy"
    return [Extra(name="{name}", host="mlp", axes=(), meaning="Some.", of="mlp_output", compute="{compute}")]
"""


@pytest.fixture
def toy(site: Site) -> Site:
    """A site with the family ``toy``."""
    site.install("toy-family", source=family("toy"), families=("toy",))
    return site


def ask(site: Site, **environment: str) -> list[str]:
    """What the plugins contribute to the family ``toy``."""
    return site.python(ASK, **environment).splitlines()


def test_the_familys_own_plugin_is_asked_first_then_all_others(toy: Site) -> None:
    toy.install("b-values", source=extra("second"), plugin=True)
    toy.install("a-values", source=extra("first"), plugin=True)
    who, *values = ask(toy)
    assert who == "['toy_family from toy-family 1.0', 'a-values 1.0', 'b-values 1.0']"
    assert [value.split()[0] for value in values] == ["first", "second"]


def test_a_family_plugin_may_add_values_of_its_own(site: Site) -> None:
    site.install("toy-family", source=family("toy") + extra("own"), families=("toy",))
    assert ask(site)[1].startswith("own <function join")


def test_two_plugins_that_add_one_name_are_an_error_that_names_both(toy: Site) -> None:
    toy.install("a-values", source=extra("same"), plugin=True)
    toy.install("b-values", source=extra("same"), plugin=True)
    assert ask(toy)[1] == (
        "BrokenPlugin: The value 'same' is added by a-values 1.0 and by b-values 1.0. Block one of them with "
        "NNTERP_VLLM_BLOCK."
    )


def test_a_value_plugin_that_cannot_be_imported_stops_the_load_and_says_how_to_go_on(toy: Site) -> None:
    toy.install("a-values", source="import nothing_like_it", plugin=True)
    assert ask(toy) == [
        "BrokenPlugin: a-values 1.0: plugin module 'a_values' cannot be imported: ModuleNotFoundError: No module named "
        "'nothing_like_it'. Reinstall or remove it, or pass family=. It takes part in every load; "
        "NNTERP_VLLM_BLOCK=a-values leaves it out."
    ]
    assert ask(toy, NNTERP_VLLM_BLOCK="a-values") == ["['toy_family from toy-family 1.0']"]
    assert ask(toy, NNTERP_VLLM_PLUGINS="toy-family") == ["['toy_family from toy-family 1.0']"]


def test_a_misspelled_hook_of_a_value_plugin_is_an_error(toy: Site) -> None:
    toy.install("a-values", source=extra("same").replace("nnterp_vllm_values", "nnterp_vllm_value"), plugin=True)
    (line,) = ask(toy)
    assert line.startswith("BrokenPlugin: a-values 1.0: plugin a_values breaks the hook contract: ")


def test_a_hook_that_fails_names_its_plugin(toy: Site) -> None:
    toy.install("a-values", source=extra("same").replace("me/toy", "you/toy"), plugin=True)
    assert ask(toy)[1] == "BrokenPlugin: a-values 1.0: nnterp_vllm_values failed: AssertionError: . Tell its author."


def test_a_hook_that_returns_something_else_names_its_plugin(toy: Site) -> None:
    source = f"{HEAD}\n@hookimpl\ndef nnterp_vllm_values():\n    return ['features']\n"
    toy.install("a-values", source=source, plugin=True)
    assert ask(toy)[1] == "BrokenPlugin: a-values 1.0: nnterp_vllm_values returned ['features']; expected a list of Extra."


def test_a_function_that_is_not_there_is_an_error_at_load(toy: Site) -> None:
    toy.install("a-values", source=extra("same", compute="os.path:nothing"), plugin=True)
    assert ask(toy)[1].startswith(
        "BrokenPlugin: The value 'same' is computed by 'os.path:nothing', which cannot be had here: AttributeError: "
    )


def test_a_veto_names_the_plugin_and_its_reason(toy: Site) -> None:
    source = f"{HEAD}\n@hookimpl\ndef nnterp_vllm_loading(options):\n    raise ValueError(options['dtype'])\n"
    toy.install("a-values", source=source, plugin=True)
    assert ask(toy)[1] == "LoadVetoed: a-values 1.0 refuses to load 'me/toy' (model_type 'toy'): ValueError: float32"
