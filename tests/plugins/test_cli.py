"""The command ``nnterp-vllm``: readable without colour, right in JSON, and alive when a plugin is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .installs import Site, family


def write_config(folder: Path, text: str) -> str:
    """A checkpoint that is a config alone."""
    folder.mkdir()
    (folder / "config.json").write_text(text)
    return str(folder)


@pytest.fixture
def crowd(site: Site) -> Site:
    """One family of every status."""
    site.install("toy-good", source=family("good"), families=("good", "good_too"))
    (site.folder / "toy_good.py").write_text(family("good").replace('("good",)', '("good", "good_too")'))
    site.install("toy-bad", source="import nothing_like_it", families=("bad",))
    site.install("toy-old", source=family("old", "validated='>=0.1,<0.2',"), families=("old",))
    site.install("toy-one", source=family("both"), families=("both",))
    site.install("toy-two", source=family("both"), families=("both",))
    site.install("toy-out", source="raise SystemExit", families=("out",))
    site.environment["NNTERP_VLLM_BLOCK"] = "toy-out"
    return site


def test_families_shows_every_status_as_json(crowd: Site) -> None:
    rows = {row["distribution"]: row for row in json.loads(crowd.cli("families", "--json").stdout)}
    assert rows["toy-good"] == {
        "family": "toy_good",
        "distribution": "toy-good",
        "version": "1.0",
        "model_types": ["good", "good_too"],
        "validated": ">=0.26,<0.33",
        "status": "ok",
        "cause": "",
        "measured": [],
    }
    statuses = {name: rows[name]["status"] for name in ("toy-bad", "toy-old", "toy-one", "toy-two", "toy-out")}
    assert statuses == {
        "toy-bad": "broken",
        "toy-old": "unvalidated",
        "toy-one": "duplicate",
        "toy-two": "duplicate",
        "toy-out": "left out",
    }
    assert "No module named 'nothing_like_it'" in rows["toy-bad"]["cause"]
    assert rows["toy-one"]["cause"] == "both is claimed by toy-one, toy-two"
    assert rows["nnterp-vllm-qwen2"]["status"] == "ok"
    assert "float32" in {one["dtype"] for one in rows["nnterp-vllm-qwen2"]["measured"]}


def test_the_record_comes_with_the_library_and_every_wide_gap_has_its_reason(crowd: Site) -> None:
    shown = crowd.cli("families", "--measured").stdout.splitlines()
    assert shown[0].split()[:3] == ["model", "type", "variant"]
    assert any(line.startswith("qwen2 ") and "NVIDIA H200" in line for line in shown)
    lines = [one for row in json.loads(crowd.cli("families", "--json").stdout) for one in row["measured"]]
    assert len(lines) == len(shown) - 1
    assert {
        (one["model_type"], one["variant"], one["engine"]) for one in lines if one["gap"] > 1e-5 and not one["note"]
    } == set()


def test_the_table_has_no_colour_and_shows_causes_only_when_asked(crowd: Site) -> None:
    plain = crowd.cli("families", FORCE_COLOR="1", NO_COLOR="").stdout
    assert "\x1b" not in plain
    assert "nothing_like_it" not in plain
    assert plain.splitlines()[0].split() == ["family", "distribution", "version", "model", "types", "vLLM", "status"]
    assert plain.splitlines()[-1].endswith(" not ok; `nnterp-vllm families --causes` says why.")
    (line,) = [line for line in plain.splitlines() if line.startswith("toy_good ")]
    assert line.split() == ["toy_good", "toy-good", "1.0", "good,", "good_too", ">=0.26,<0.33", "ok"]
    assert (
        "toy-bad 1.0, broken: toy-bad 1.0: plugin module 'toy_bad' cannot be imported"
        in crowd.cli("families", "--causes").stdout
    )


def test_listing_imports_no_engine(site: Site) -> None:
    code = """
    import sys
    from nnterp_vllm_core.cli import app
    try:
        app(["families"])
    except SystemExit:
        pass
    print("heavy", sorted({"torch", "vllm", "nnsight", "transformers"} & set(sys.modules)))
    """
    assert site.python(code).splitlines()[-1] == "heavy []"


def test_support_answers_from_the_config_alone(site: Site, tmp_path: Path) -> None:
    checkpoint = write_config(tmp_path / "gpt2", '{"model_type": "gpt2"}')
    done = site.cli("support", checkpoint)
    assert done.returncode == 0, done.stderr
    assert "on vLLM's own GPT2Block" in done.stdout
    answer = json.loads(site.cli("support", checkpoint, "--json").stdout)
    (lines,) = answer["support"].values()
    assert lines["layers.*.self_attn.attention_probabilities"] == "served (read-only; prefill only)"
    assert lines["attention_mask"].startswith("unavailable: ")
    assert answer["distribution"] == "nnterp-vllm-gpt2"


def test_support_lists_what_plugins_add(site: Site, tmp_path: Path) -> None:
    source = """
    from nnterp_vllm_core.extra import Extra
    from nnterp_vllm_core.hookspecs import hookimpl

    @hookimpl
    def nnterp_vllm_values():
        return [Extra(name="features", host="mlp", axes=(), meaning="Some.", of="mlp_output", compute="a:b", layers=(3,))]
    """
    site.install("dictionary", source=source, plugin=True)
    done = site.cli("support", write_config(tmp_path / "llama", '{"model_type": "llama"}'))
    (line,) = [line for line in done.stdout.splitlines() if "features" in line]
    assert line.split(None, 1) == ["layers.*.mlp.features", "served (layers [3] alone; read-only)"]


def test_support_needs_no_vllm_and_then_shows_every_declaration(site: Site, tmp_path: Path) -> None:
    (site.folder / "sitecustomize.py").write_text(
        "import importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'vllm' else real(name, *rest)\n"
    )
    done = site.cli("support", write_config(tmp_path / "llama", '{"model_type": "llama"}'))
    assert done.returncode == 0, done.stderr
    assert "on vLLM's own LlamaDecoderLayer" in done.stdout
    assert "on vLLM's Transformers backend, LlamaDecoderLayer" in done.stdout


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ('{"model_type": "nobody"}', "UnsupportedFamily: No installed plugin covers model_type 'nobody'"),
        ("{}", "names no model_type"),
        ("{", "CheckpointNotFound: No config.json for"),
    ],
)
def test_support_fails_in_one_line(site: Site, tmp_path: Path, config: str, error: str) -> None:
    done = site.cli("support", write_config(tmp_path / "checkpoint", config))
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_reports_versions_engine_and_plugins_with_advice(crowd: Site) -> None:
    crowd.install("lonely", source="import nothing_like_it", plugin=True)
    done = crowd.cli("doctor", NNTERP_VLLM_BLOCK="toy-out,tpyo", VLLM_USE_V2_MODEL_RUNNER="1")
    assert done.returncode == 1
    levels = {tuple(line.split(None, 2)[:2]) for line in done.stdout.splitlines() if line}
    assert {("ok", "torch"), ("ok", "nnsight"), ("ok", "transformers"), ("ok", "engine")} <= levels
    assert ("error", "VLLM_USE_V2_MODEL_RUNNER") in levels
    assert "error: families, broken: toy-bad 1.0: toy-bad 1.0: plugin module 'toy_bad' cannot be imported" in done.stdout
    assert "NNTERP_VLLM_BLOCK=lonely leaves it out." in done.stdout
    assert "warning: NNTERP_VLLM_BLOCK: tpyo matches nothing installed" in done.stdout
    assert "error: VLLM_USE_V2_MODEL_RUNNER: No block would run" in done.stdout


def test_check_passes_on_a_shipped_family(site: Site) -> None:
    done = site.cli("check", "--static", "nnterp-vllm-gpt2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{done.stdout.splitlines()[0]}", "declaration: ok"]


def test_check_finds_what_is_wrong_with_a_distribution(site: Site) -> None:
    source = "import torch\n" + family("wrong").replace("LlamaDecoderLayer", "LlamaBlock")
    site.install("toy-wrong", source=source, families=("wrong", "wrong_too"), requires=("vllm", "torch"))
    done = site.cli("check", "toy-wrong", "--static")
    assert done.returncode == 1
    said = done.stdout
    assert "error: toy-wrong metadata: no dependency on nnterp-vllm." in said
    assert "error: toy-wrong metadata: it depends on vllm;" in said
    assert "error: toy_wrong: importing it imports ['torch']" in said
    assert "error: toy_wrong: the entry point 'wrong_too' is declared by no Family of the module." in said
    assert "error: vllm.model_executor.models.llama.LlamaBlock: the module has no class LlamaBlock" in said
    assert said.splitlines()[-1] == "declaration: failed"


def test_check_of_a_plugin_that_breaks_says_so(crowd: Site) -> None:
    done = crowd.cli("check", "toy-bad", "--static")
    assert done.returncode == 1
    assert "error: toy_bad: toy-bad 1.0: plugin module 'toy_bad' cannot be imported" in done.stdout


def test_check_runs_the_conformance_tests_that_a_distribution_ships(site: Site) -> None:
    site.install("toy-family", source="", families=("toy",))
    (site.folder / "toy_family.py").unlink()
    package = site.folder / "toy_family"
    package.mkdir()
    (package / "__init__.py").write_text(family("toy"))
    (package / "conformance.py").write_text("class TestToy:\n    def test_it(self):\n        assert 1 == 2\n")
    done = site.cli("check", "toy")
    assert done.returncode == 1
    assert "declaration: ok" in done.stdout
    assert done.stdout.splitlines()[-1] == "conformance: failed"
    (package / "conformance.py").write_text("class TestToy:\n    def test_it(self):\n        assert 1 == 1\n")
    assert site.cli("check", "toy").returncode == 0


def test_check_says_when_there_is_no_conformance_test(site: Site) -> None:
    site.install("toy-family", source=family("toy"), families=("toy",))
    assert "conformance: not run: toy_family.conformance does not exist." in site.cli("check", "toy").stdout


def test_new_writes_what_the_installed_sources_tell(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "granite"
    done = site.cli("new", "my-granite", "--model-type", "granite", "--folder", str(folder))
    assert done.returncode == 0, done.stderr
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == [
        "CHANGELOG.md",
        "README.md",
        "nnterp_vllm_my_granite/__init__.py",
        "nnterp_vllm_my_granite/conformance.py",
        "nnterp_vllm_my_granite/py.typed",
        "pyproject.toml",
        "tests/test_my_granite.py",
    ]
    source = (folder / "nnterp_vllm_my_granite" / "__init__.py").read_text()
    assert 'source="vllm.model_executor.models.granite",' in source
    assert 'block="GraniteDecoderLayer",' in source
    assert "stream=FusedStream()" not in source  # this block adds the residual itself, times a multiplier
    assert 'granite = "nnterp_vllm_my_granite"' in (folder / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("Two Words", (), "write lower case letters, digits and single dashes"),
        ("toy", ("--model-type", "a b"), "write it as config.json does"),
        ("toy", ("--folder", "."), "exists and is not empty"),
    ],
)
def test_new_refuses_what_cannot_work(site: Site, name: str, options: tuple[str, ...], text: str) -> None:
    done = site.cli("new", name, *options)
    assert done.returncode == 1
    assert text in done.stderr
