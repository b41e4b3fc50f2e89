"""The pytest plugin behind `ConformanceSuite`: which engines a class runs on, and one load for all of its tests.

It is loaded in every pytest session of an environment that has this library, so it imports nothing heavy until a suite
runs, and does nothing for anybody else's tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .case import Case, Subject
    from .reference import Reference

_CASE = "checkpoint_under_test"
_SUBJECT = "engine_under_test"
_NOT_RUN = pytest.StashKey[dict[str, str]]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a suite's tests on each engine, and those of values on each variant too."""
    suite: Any = metafunc.cls
    if suite is None or not hasattr(suite, "runs_on"):
        return
    if suite.lacks():
        left_out = {f"{suite.model_type} on vLLM": f"{', '.join(suite.lacks())} is not installed"}
    else:
        left_out = {
            f"{suite.model_type} on vLLM's own implementation": suite.without_vllm(),
            f"{suite.model_type} on vLLM's Transformers backend": suite.without_backend(),
        }
    reasons = {engine: reason for engine, reason in left_out.items() if reason}
    metafunc.config.stash.setdefault(_NOT_RUN, {}).update(reasons)
    # All tests take a prefix of one list, so that pytest sees the same parameter of every test and groups them by it.
    whole = [(engine, "") for engine in suite.runs_on()]
    names = list(suite.variants)
    if _SUBJECT in metafunc.fixturenames and whole:
        everywhere = metafunc.definition.get_closest_marker("variants") is not None
        chosen = whole + [(whole[0][0], name) for name in names] * everywhere
        ids = ["-".join(part for part in pair if part) for pair in chosen]
        metafunc.parametrize(_SUBJECT, chosen, indirect=True, scope="class", ids=ids)
    if _CASE in metafunc.fixturenames:
        ids = ["-".join(["transformers", *([name] if name else [])]) for name in ["", *names]]
        metafunc.parametrize(_CASE, ["", *names], indirect=True, scope="class", ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the promises about an engine where a class runs on none; the summary says why."""
    idle = [item for item in items if _SUBJECT in getattr(item, "fixturenames", ()) and not _runs(item)]
    if idle:
        items[:] = [item for item in items if item not in idle]
        config.hook.pytest_deselected(items=idle)


def _runs(item: pytest.Item) -> bool:
    suite: Any = getattr(item, "cls", None)
    return not hasattr(suite, "runs_on") or bool(suite.runs_on())


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark of the promises that variants are held to."""
    config.addinivalue_line("markers", "variants: a promise of `ConformanceSuite` that its variants are held to as well")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which families were not run on which engine, and why."""
    not_run = config.stash.get(_NOT_RUN, {})
    if not_run:
        terminalreporter.section("families not run")
        for family, reason in sorted(not_run.items()):
            terminalreporter.line(f"{family}: {reason}")


@pytest.fixture(scope="session")
def conformance_reference() -> Iterator[Reference]:
    """transformers in a process of its own."""
    from .reference import Reference

    reference = Reference()
    yield reference
    reference.close()


@pytest.fixture(scope="class")
def conformance_cases(
    request: pytest.FixtureRequest, conformance_reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Case]]:
    """The class's checkpoints by variant."""
    from .case import Case

    suite: Any = request.cls
    folder = tmp_path_factory.mktemp(suite.model_type)
    yield {name: Case(suite, name, conformance_reference, folder / (name or "config")) for name in ("", *suite.variants)}
    conformance_reference.ask("close")


@pytest.fixture(scope="class")
def checkpoint_under_test(request: pytest.FixtureRequest, conformance_cases: dict[str, Case]) -> Case:
    """A checkpoint and what transformers says about it."""
    case = conformance_cases[request.param]
    case.prepare()
    return case


@pytest.fixture(scope="class")
def engine_under_test(request: pytest.FixtureRequest, conformance_cases: dict[str, Case]) -> Iterator[Subject]:
    """A loaded engine, ended when the class is through with it."""
    from .case import Subject

    engine, variant = request.param
    case = conformance_cases[variant]
    case.prepare()
    subject = Subject.start(case, engine)
    yield subject
    subject.stop()
