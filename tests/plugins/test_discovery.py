"""Plugins are found without being imported, and each way to get them wrong has its own text."""

from __future__ import annotations

import ast

from .installs import Site, family

FIND = """
from nnterp_vllm_core import NnterpVLLMError
from nnterp_vllm_core.loader import find
try:
    print(find({model_type!r}))
except NnterpVLLMError as error:
    print(type(error).__name__, error, sep=": ")
    cause = error.__cause__
    while cause is not None:
        print("cause", type(cause).__name__, cause, sep=": ")
        cause = cause.__cause__
"""


def find(site: Site, model_type: str, **environment: str) -> list[str]:
    """What looking ``model_type`` up says, in a process of its own."""
    return site.python(FIND.format(model_type=model_type), **environment).splitlines()


def test_seventy_installed_plugins_are_listed_fast_and_without_importing_anything(site: Site) -> None:
    for number in range(70):
        site.install(f"many-{number}", source="raise SystemExit('imported')", families=(f"many{number}",))
    code = """
    import sys, time
    start = time.process_time()
    from nnterp_vllm_core.loader import installed
    names = [entry.name for entry in installed()]
    took = time.process_time() - start
    heavy = sorted({"torch", "vllm", "nnsight", "transformers"} & set(sys.modules))
    plugins = [name for name in sys.modules if name.startswith("many_")]
    print((sum(name.startswith("many") for name in names), took, heavy, plugins))
    """
    # The process's own time, the least of five: a busy machine must not count, and the budget (0.3 s, imports included) is
    # the listing's.
    runs = [ast.literal_eval(site.python(code)) for _ in range(5)]
    assert all((count, heavy, plugins) == (70, [], []) for count, _, heavy, plugins in runs)
    assert min(took for _, took, _, _ in runs) < 0.3


def test_a_family_is_found_by_its_model_type(site: Site) -> None:
    site.install("toy-family", source=family("toy"), families=("toy",))
    assert find(site, "toy") == ["toy_family from toy-family 1.0"]


def test_an_unknown_model_type_names_what_is_installed_and_what_to_install(site: Site) -> None:
    site.install("toy-family", source=family("toy"), families=("toy",))
    (line,) = find(site, "new_toy")
    assert line.startswith("UnsupportedFamily: No installed plugin covers model_type 'new_toy'; installed: ")
    assert "toy" in line
    assert line.endswith("Try `pip install nnterp-vllm-new-toy`, or pass family= with a declaration of your own.")


def test_two_distributions_of_one_model_type_are_an_error_for_that_type_alone(site: Site) -> None:
    site.install("toy-one", source=family("toy"), families=("toy",))
    site.install("toy-two", version="2.0", source=family("toy"), families=("toy",))
    site.install("other", source=family("other"), families=("other",))
    assert find(site, "toy") == [
        "DuplicateFamily: model_type 'toy' is claimed by 2 installed distributions: toy-one 1.0, toy-two 2.0. Uninstall all "
        "but one, or choose with family='toy_one'."
    ]
    assert find(site, "other") == ["other from other 1.0"]


def test_a_broken_plugin_costs_nobody_else_and_keeps_its_cause(site: Site) -> None:
    site.install("broken", source="import a_module_that_nobody_has", families=("broken",))
    site.install("other", source=family("other"), families=("other",))
    assert find(site, "other") == ["other from other 1.0"]
    assert find(site, "broken") == [
        "BrokenPlugin: broken 1.0: plugin module 'broken' cannot be imported: ModuleNotFoundError: No module named "
        "'a_module_that_nobody_has'. Reinstall or remove it, or pass family=.",
        "cause: ModuleNotFoundError: No module named 'a_module_that_nobody_has'",
    ]


def test_a_misspelled_hook_is_an_error_that_lists_the_hooks(site: Site) -> None:
    site.install(
        "toy-family", source=family("toy").replace("nnterp_vllm_families", "nnterp_vllm_familys"), families=("toy",)
    )
    (line,) = find(site, "toy")
    assert line.startswith("BrokenPlugin: toy-family 1.0: plugin toy_family breaks the hook contract: ")
    assert "nnterp_vllm_familys" in line
    assert line.endswith("Hooks: nnterp_vllm_families, nnterp_vllm_loading, nnterp_vllm_values.")


def test_a_hook_that_asks_for_an_argument_nobody_gives_is_an_error(site: Site) -> None:
    source = family("toy").replace("def nnterp_vllm_families():", "def nnterp_vllm_families(colour):")
    site.install("toy-family", source=source, families=("toy",))
    line = " ".join(find(site, "toy"))
    assert line.startswith("BrokenPlugin: toy-family 1.0: plugin toy_family breaks the hook contract: ")
    assert "colour" in line


def test_a_plugin_made_for_another_core_is_refused_with_both_versions(site: Site) -> None:
    site.install("future", source="raise SystemExit", families=("toy",), requires=("nnterp-vllm>=7,<8", "torch"))
    (line,) = find(site, "toy")
    assert line.startswith("BrokenPlugin: future 1.0 needs nnterp-vllm<8,>=7, and nnterp-vllm ")
    assert line.endswith("Upgrade the one that is behind: `pip install --upgrade nnterp-vllm future`.")


def test_a_requirement_of_an_extra_or_of_another_platform_does_not_count(site: Site) -> None:
    requires = ("nnterp-vllm>=7; extra == 'future'", "nnterp-vllm>=7; sys_platform == 'nowhere'", "nnterp-vllm>=0.1")
    site.install("toy-family", source=family("toy"), families=("toy",), requires=requires)
    assert find(site, "toy") == ["toy_family from toy-family 1.0"]


def test_a_family_that_contradicts_itself_is_a_broken_plugin_with_its_own_words(site: Site) -> None:
    source = family("toy").replace("stream=FusedStream()", "stream=FusedStream(), values={'loudness': None}")
    site.install("toy-family", source=source, families=("toy",))
    first, cause = find(site, "toy")
    assert first.startswith(
        "BrokenPlugin: toy-family 1.0: plugin module 'toy_family' cannot be imported: DeclarationError: "
    )
    assert cause.startswith("cause: DeclarationError: vllm.model_executor.models.llama: ['loudness'] are no standard values")


def test_a_plugin_that_declares_less_than_it_advertises_is_an_error(site: Site) -> None:
    site.install("toy-family", source=family("toy"), families=("toy", "toy_moe"))
    assert find(site, "toy_moe") == [
        "BrokenPlugin: toy-family 1.0 advertises model_type 'toy_moe' in its entry points, but toy_family declares only "
        "['toy']. Tell its author, or pass family=."
    ]


def test_an_engine_outside_the_validated_range_is_a_warning_of_its_own_category(site: Site) -> None:
    site.install("toy-family", source=family("toy", "validated='>=0.26,<0.30',"), families=("toy",))
    code = """
    import warnings
    from nnterp_vllm_core import UnvalidatedEngine
    from nnterp_vllm_core.loader import find, warn_outside
    for version in ("0.26.0", "0.29.1+cpu", "0.30.0", "0.31.0.dev1", None):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warn_outside(find("toy"), version)
        print([(one.category is UnvalidatedEngine, str(one.message)) for one in caught])
    """
    inside, local, newer, development, nothing = map(ast.literal_eval, site.python(code).splitlines())
    assert inside == local == nothing == []
    assert newer == [
        (
            True,
            "Family toy_family from toy-family 1.0 was validated on vLLM >=0.26,<0.30 and vLLM 0.30.0 is installed: values "
            "may be wrong or missing. Update the family, or check it here with `nnterp-vllm check toy-family`.",
        )
    ]
    assert [mine for mine, _ in development] == [True]


def test_the_environment_blocks_distributions_and_model_types(site: Site) -> None:
    site.install("toy-family", source=family("toy"), families=("toy",))
    for blocked in ("toy", "Toy_Family", "nothing, toy-family"):
        (line,) = find(site, "toy", NNTERP_VLLM_BLOCK=blocked)
        assert line == (
            "UnsupportedFamily: No usable plugin covers model_type 'toy': it is left out by the environment "
            f"(toy-family 1.0: NNTERP_VLLM_BLOCK={blocked!r} blocks it). Change the variable, or pass family='toy_family'."
        )


def test_the_environment_selects_the_only_plugins_that_are_used(site: Site) -> None:
    site.install("toy-one", source=family("toy"), families=("toy",))
    site.install("toy-two", source=family("toy"), families=("toy",))
    assert find(site, "toy", NNTERP_VLLM_PLUGINS="toy-two") == ["toy_two from toy-two 1.0"]
    (line,) = find(site, "toy", NNTERP_VLLM_PLUGINS="another")
    assert "NNTERP_VLLM_PLUGINS='another' does not name it" in line


def test_installed_is_empty_of_what_is_left_out_and_advertised_says_why(site: Site) -> None:
    site.install("toy-family", source=family("toy"), families=("toy",))
    code = """
    from nnterp_vllm_core.discovery import advertised, installed, unknown_names
    print(any(entry.name == "toy" for entry in installed()))
    print([entry.left_out for entry in advertised() if entry.name == "toy"])
    print(unknown_names())
    """
    assert site.python(code, NNTERP_VLLM_BLOCK="toy-family,tyo").splitlines() == [
        "False",
        "[\"NNTERP_VLLM_BLOCK='toy-family,tyo' blocks it\"]",
        "{'NNTERP_VLLM_BLOCK': ['tyo']}",
    ]
