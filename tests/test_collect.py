"""Collection gives what traces give, in order and in bounded memory, and an interruption loses and doubles nothing."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch
from safetensors.numpy import load_file
from support.blocks import as_in_any_batch
from support.engines import on_two_ranks
from support.oracle import same
from support.scripts import TESTS, run

from nnterp_vllm_core import Collected, CollectionError, OutputFolderError, Unavailable
from nnterp_vllm_core.collect.store import Folder

pytestmark = pytest.mark.parametrize("name", ["qwen2"], indirect=True, scope="session")

PROMPTS = ["The Eiffel Tower is in", "hello", "The capital of Japan is a city that", [5, 6, 7, 8], "one two three"]
STREAM = "layers.2.layer_output"


def traced(model: Any, prompts: list[Any], read: Callable[[Any], Any], **sampling: Any) -> list[Any]:
    """What ``read`` reads of each prompt in one trace, whose requests the engine batches as a collection's."""
    with model.trace(temperature=0.0, max_tokens=1, **sampling) as tracer:
        found = nnsight.save([])
        for prompt in prompts:
            with tracer.invoke(prompt):
                found.append(read(model))
    return found


def rows_of_everything(model: Any) -> dict[str, torch.Tensor]:
    """Every value that a collection takes at all positions, of one layer, with positions first."""
    block = model.layers[1]
    attention = block.self_attn
    return {
        "input_ids": model.input_ids[0],
        "token_embeddings": model.token_embeddings[0],
        "layers.1.layer_input": block.layer_input[0],
        "layers.1.self_attn.attention_queries": attention.attention_queries[0].transpose(0, 1),
        "layers.1.self_attn.attention_keys": attention.attention_keys[0].transpose(0, 1),
        "layers.1.self_attn.attention_values": attention.attention_values[0].transpose(0, 1),
        "layers.1.self_attn.attention_scores": attention.attention_scores[0].transpose(0, 1),
        "layers.1.self_attn.attention_probabilities": attention.attention_probabilities[0].transpose(0, 1),
        "layers.1.self_attn.attention_head_outputs": attention.attention_head_outputs[0],
        "layers.1.self_attn.attention_output": attention.attention_output[0],
        "layers.1.mlp.mlp_output": block.mlp.mlp_output[0],
        "layers.1.layer_output": block.layer_output[0],
    }


@pytest.mark.parametrize(
    ("positions", "chosen"),
    [
        ("last", lambda rows: rows[-1:]),
        ("all", lambda rows: rows),
        (-1, lambda rows: rows[-1:]),
        ([-1, 0, 0], lambda rows: rows[[-1, 0, 0]]),
        ([[n % 2 == 0 for n in range(size)] for size in (5, 1, 8, 4, 3)], lambda rows: rows[::2]),
    ],
    ids=["last", "all", "an integer", "a list", "a mask for each prompt"],
)
def test_every_value_equals_a_traces_to_the_bit(model: Any, positions: Any, chosen: Any) -> None:
    prompts = [model.tokenizer(text)["input_ids"][:8] if isinstance(text, str) else text for text in PROMPTS]
    if isinstance(positions, list) and isinstance(positions[0], list):
        positions = [[n % 2 == 0 for n in range(len(ids))] for ids in prompts]
    expected = traced(model, prompts, rows_of_everything)
    found = model.collect(prompts, list(expected[0]), positions=positions, quiet=True)
    assert len(found) == len(prompts)
    for rows, reference in zip(found, expected, strict=True):
        unequal = [path for path, value in reference.items() if not same(rows[path], chosen(value))]
        assert unequal == []


def test_text_is_tokenized_as_a_trace_does(model: Any) -> None:
    expected = traced(model, PROMPTS, lambda model: (model.input_ids[0], model.logits[0], model.next_token_probs))
    ids = model.collect(PROMPTS, "input_ids", positions="all", quiet=True)
    last = model.collect(PROMPTS, ["logits", "next_token_probs"], quiet=True)
    assert ids.tokens.tolist() == [len(one[0]) for one in expected]
    for number, reference in enumerate(expected):
        assert same(ids.prompt(number)["input_ids"], reference[0])
        assert same(last.prompt(number)["logits"], reference[1])
        assert same(last.prompt(number)["next_token_probs"], reference[2])


def test_generated_positions_equal_a_traces_decode_steps(model: Any) -> None:
    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=4, ignore_eos=True) as tracer:
        states = nnsight.save([])
        for step in tracer.iter[:4]:
            if step > 0:
                states.append((model.layers[2].layer_output[0], model.logits[0]))
    found = model.collect([PROMPTS[0]], [STREAM, "logits"], positions="generated", max_tokens=4, ignore_eos=True, quiet=True)
    assert same(found[STREAM], torch.cat([stream for stream, _ in states]))
    assert same(found["logits"], torch.cat([logits for _, logits in states]))
    mean = model.collect(
        [PROMPTS[0]], STREAM, positions="generated", max_tokens=4, ignore_eos=True, reduce="mean", quiet=True
    )
    # The worker's mean is its device's: CUDA multiplies by the reciprocal of the number of rows, and the CPU divides.
    assert same(mean[STREAM], found[STREAM].to(states[0][0].device).mean(0, keepdim=True))


def test_wildcards_name_values_in_the_models_order(model: Any) -> None:
    found = model.collect(PROMPTS[:1], ["layers.*.layer_output", "layers.-1.mlp.*"], quiet=True)
    layers = range(model.num_layers)
    assert found.values == (
        *(f"layers.{i}.layer_output" for i in layers),
        f"layers.{model.num_layers - 1}.mlp.mlp_output",
    )


def test_what_cannot_be_collected_is_refused_before_anything_runs(model: Any) -> None:
    def prompts() -> Iterator[str]:
        raise AssertionError("a prompt was read")
        yield ""

    def refused(values: Any, **options: Any) -> Any:
        return model.collect(prompts(), values, quiet=True, **options)

    with pytest.raises(ValueError, match=r"'layers.0.layer_outputs' names no value.*layers\.\*\.layer_output'"):
        refused("layers.0.layer_outputs")
    with pytest.raises(IndexError, match="layer 99 does not exist; this model has"):
        refused("layers.99.layer_output")
    with pytest.raises(Unavailable, match="attention_mask is unavailable: a request is one unpadded sequence"):
        refused("attention_mask")
    with pytest.raises(Unavailable, match="logits exists at a prompt's last position only"):
        refused("logits", positions="all")
    with pytest.raises(Unavailable, match="on the prefill only"):
        refused("layers.0.self_attn.attention_scores", positions="generated", max_tokens=3)
    with pytest.raises(ValueError, match="input_size is no tensor"):
        refused("input_size")
    with pytest.raises(ValueError, match="positions='first' is none of"):
        refused(STREAM, positions="first")
    with pytest.raises(TypeError, match=r"'temperature'.*positions='generated'"):
        refused(STREAM, temperature=1.0)
    with pytest.raises(ValueError, match="reduce='median'"):
        refused(STREAM, reduce="median")
    with pytest.raises(ValueError, match="dtype='float17'"):
        refused(STREAM, dtype="float17")


def test_a_position_outside_a_prompt_names_the_prompt(model: Any) -> None:
    with pytest.raises(IndexError, match="Position 3 is outside prompt 1, which has 2 tokens"):
        model.collect([[1, 2, 3, 4], [1, 2]], STREAM, positions=[0, 3], quiet=True)
    with pytest.raises(ValueError, match="Prompt 0 has 3 tokens and its mask has 2 entries"):
        model.collect([[1, 2, 3]], STREAM, positions=[[True, False]], quiet=True)
    with pytest.raises(ValueError, match="has 1 masks and there are more prompts"):
        model.collect([[1, 2], [3, 4]], STREAM, positions=[[True, False]], quiet=True)
    with pytest.raises(TypeError, match="Prompt 1 is a float"):
        model.collect([[1, 2], 0.5], STREAM, quiet=True)
    with pytest.raises(ValueError, match="Prompt 1 is refused by the engine: Token id 1000000"):
        model.collect([[1, 2], [10**6]], STREAM, quiet=True)


def test_a_prompt_longer_than_the_context_is_an_error_or_skipped(model: Any) -> None:
    prompts = [[1, 2, 3], list(range(1, 129)), [4, 5]]
    with pytest.raises(ValueError, match="Prompt 1 has 128 tokens and this engine has room for 127"):
        model.collect(prompts, STREAM, quiet=True)
    found = model.collect(prompts, STREAM, too_long="skip", quiet=True)
    assert found.skipped == [1]
    assert found.offsets.tolist() == [0, 1, 1, 2]
    assert torch.equal(found.prompt(2)[STREAM], found[STREAM][1:])


def middle(rows: torch.Tensor) -> torch.Tensor:
    return rows[len(rows) // 2]


def test_a_reduction_and_a_dtype_are_applied_where_the_rows_are(model: Any) -> None:
    rows = model.collect(PROMPTS, STREAM, positions="all", quiet=True)
    for reduce, expected in (("mean", lambda t: t.mean(0)), ("sum", lambda t: t.sum(0)), (middle, middle)):
        found = model.collect(PROMPTS, STREAM, positions="all", reduce=reduce, dtype=torch.float16, quiet=True)
        reference = torch.stack([expected(one[STREAM]) for one in rows]).half()
        assert torch.equal(found[STREAM], reference)


def test_an_error_in_a_reduction_ends_the_collection_and_not_the_engine(model: Any) -> None:
    with pytest.raises(CollectionError, match="ZeroDivisionError"):
        model.collect(PROMPTS, STREAM, reduce=lambda rows: rows / (1 // 0), quiet=True)
    assert len(model.collect(PROMPTS, STREAM, quiet=True)) == len(PROMPTS)


def test_no_more_requests_are_in_flight_than_the_window(model: Any) -> None:
    engine = model.vllm_entrypoint.llm_engine
    seen = []

    def prompts() -> Iterator[list[int]]:
        for number in range(300):
            seen.append(engine.get_num_unfinished_requests())
            yield [1 + number % 100, 2, 3]

    found = model.collect(prompts(), "input_ids", positions=0, window=8, quiet=True)
    assert found["input_ids"].tolist() == [1 + number % 100 for number in range(300)]
    assert max(seen) <= 8
    assert model.vllm_entrypoint.collective_rpc("nnsight_request_count") == [0]


def test_an_installed_edit_runs_beside_a_collection_and_shows_in_it(model: Any) -> None:
    plain = model.collect(PROMPTS, STREAM, quiet=True)
    with model.edit() as (_, edit):
        model.layers[2].layer_output[:, -1] *= 0.5
    try:
        edited = model.collect(PROMPTS, STREAM, quiet=True)
    finally:
        edit.clear()
    assert torch.equal(edited[STREAM], plain[STREAM] * 0.5)
    assert torch.equal(model.collect(PROMPTS, STREAM, quiet=True)[STREAM], plain[STREAM])


NUMBERED = [[1 + number, 2, 3 + number % 7] for number in range(40)]
#: Four prompts of 3 rows of 128 float32 numbers to a shard.
SMALL = {"positions": "all", "shard_bytes": 4 * 3 * 128 * 4, "window": 8, "quiet": True}


@pytest.fixture(scope="session")
def whole(name: str, engines: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("collected") / "whole"
    engines.get(name).collect(NUMBERED, STREAM, out=folder, **SMALL)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_files_hold_what_memory_holds_and_open_without_a_model(model: Any, whole: Path) -> None:
    memory = model.collect(NUMBERED, STREAM, positions="all", window=SMALL["window"], quiet=True)
    opened = Collected.open(whole)
    assert len(list(whole.glob("*.safetensors"))) == 10
    assert torch.equal(opened[STREAM], memory[STREAM])
    assert as_in_any_batch(model.collect(NUMBERED, STREAM, positions="all", quiet=True)[STREAM], memory[STREAM])
    assert torch.equal(opened.offsets, memory.offsets)
    assert torch.equal(opened.stacked(STREAM)[17], memory.prompt(17)[STREAM])
    first = load_file(whole / "shard-00000.safetensors")
    assert (first[STREAM] == memory[STREAM][:12].numpy()).all()
    index = json.loads((whole / "index.json").read_text())
    assert (index["prompts"], index["rows"], index["complete"]) == (40, 120, True)
    assert index["run"]["family"] == "nnterp_vllm_families.qwen2"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_run_goes_on_and_gives_the_same_files(model: Any, tmp_path: Path, error: type[BaseException]) -> None:
    def stopped_early() -> Iterator[list[int]]:
        # More prompts than are read together, so that some have been run when the error comes.
        yield from [[1, 2, 3]] * 100
        raise error

    with pytest.raises(error):
        model.collect(stopped_early(), STREAM, out=tmp_path / "other", **SMALL)
    assert Collected.open(tmp_path / "other").info["complete"] is False
    assert model.vllm_entrypoint.llm_engine.get_num_unfinished_requests() == 0
    found = model.collect([[1, 2, 3]] * 100, STREAM, out=tmp_path / "other", **SMALL)
    assert found.offsets.tolist() == [3 * number for number in range(101)]
    model.collect([[1, 2, 3]] * 100, STREAM, out=tmp_path / "uninterrupted", **SMALL)
    assert contents(tmp_path / "other") == contents(tmp_path / "uninterrupted")


def test_a_finished_run_is_not_run_again(model: Any, whole: Path) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in whole.iterdir()}
    found = model.collect(NUMBERED, STREAM, out=whole, **SMALL)
    assert len(found) == 40
    assert {file.name: file.stat().st_mtime_ns for file in whole.iterdir()} == before


def test_a_folder_with_another_run_is_refused_and_the_difference_named(model: Any, whole: Path, tmp_path: Path) -> None:
    before = contents(whole)
    with pytest.raises(OutputFolderError, match=r"its values is \['layers.2.layer_output'\] and this call's is"):
        model.collect(NUMBERED, "layers.1.layer_output", out=whole, **SMALL)
    with pytest.raises(OutputFolderError, match="its positions is 'all' and this call's is 'last'"):
        model.collect(NUMBERED, STREAM, out=whole, **{**SMALL, "positions": "last"})
    with pytest.raises(OutputFolderError, match="its prompts 4 to 7 are not this call's"):
        model.collect([*NUMBERED[:5], [9, 9], *NUMBERED[6:]], STREAM, out=whole, **SMALL)
    with pytest.raises(OutputFolderError, match="holds 40 prompts and this call gives 10"):
        model.collect(NUMBERED[:10], STREAM, out=whole, **SMALL)
    assert contents(whole) == before
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OutputFolderError, match=r"holds other files \('notes.txt'\)"):
        model.collect(NUMBERED, STREAM, out=tmp_path, **SMALL)
    with pytest.raises(OutputFolderError, match="holds no collection"):
        Collected.open(tmp_path)


def test_a_disk_that_takes_no_more_leaves_a_folder_to_go_on_with(model: Any, whole: Path, tmp_path: Path) -> None:
    shard = (whole / "shard-00000.safetensors").stat().st_size
    # One prompt of many tokens makes one shard too large for the limit.
    prompts = [*NUMBERED[:8], list(range(1, 100)), *NUMBERED[8:]]
    model.collect(prompts, STREAM, out=tmp_path / "whole", **SMALL)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * shard, hard))
    try:
        with pytest.raises(OutputFolderError, match="The 8 prompts before it are safe; call again"):
            model.collect(prompts, STREAM, out=tmp_path / "full", **SMALL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(Collected.open(tmp_path / "full")) == 8
    model.collect(prompts, STREAM, out=tmp_path / "full", **SMALL)
    assert contents(tmp_path / "full") == contents(tmp_path / "whole")


KILLED = """
import sys
from pathlib import Path
import torch
from nnterp_vllm_core.collect.store import Entry, Folder

with Folder(Path(sys.argv[1]), {"values": ["value"]}) as folder:
    for number in range(100):
        entry = Entry(tokens=1, digest=str(number))
        entry.rows = {"value": torch.full((1, 20_000_000), float(number))}
        folder.add([entry])
"""


def test_a_process_killed_in_the_middle_of_a_shard_leaves_whole_shards(tmp_path: Path, name: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    deadline = time.monotonic() + 60
    while not (tmp_path / "shard-00001.safetensors.part").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    opened = Collected.open(tmp_path)
    assert [float(rows["value"][0, 0]) for rows in opened] == list(range(len(opened)))
    with Folder(tmp_path, {"values": ["value"]}) as folder:
        assert folder.done == len(opened)
    assert {file.name for file in tmp_path.iterdir()} == {
        "index.json",
        *(f"shard-{number:05d}.safetensors" for number in range(len(opened))),
    }


@on_two_ranks
def test_a_spawned_engine_of_two_ranks_collects_what_one_rank_does(
    model: Any, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    script = TESTS / "scripts" / "collect.py"
    run(script, checkpoints["qwen2"], tmp_path / "out", VLLM_CPU_OMP_THREADS_BIND="0|1")
    found = Collected.open(tmp_path / "out")
    expected = model.collect(PROMPTS, list(found.values), positions="all", quiet=True)
    for path in found.values:
        # Two ranks sum the halves of a matrix product apart, so the order of float32 sums differs.
        gap = (found[path] - expected[path]).abs().max() / expected[path].abs().max()
        assert gap <= 1e-5, path


@pytest.mark.parametrize("reduce", [None, "mean"])
def test_generations_that_stop_at_their_first_token_have_zero_rows(model: Any, reduce: str | None) -> None:
    """A stop token that every prompt draws first, so that no prompt tells the shape of a row."""
    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=1) as tracer:
        result = tracer.result.save()
    first = result.outputs[0].token_ids[0]
    values = [STREAM, "layers.1.self_attn.attention_queries", "logits"]
    settings = {"positions": "generated", "max_tokens": 4, "stop_token_ids": [first], "reduce": reduce, "quiet": True}
    found = model.collect([PROMPTS[0], PROMPTS[0]], values, **settings)
    assert found[STREAM].shape == (0, model.hidden_size)
    assert found[values[1]].shape == (0, model.num_heads, model.head_dim)
    assert found["logits"].shape == (0, model.vocab_size)
    mixed = model.collect([PROMPTS[0], PROMPTS[1]], values, **settings)
    assert mixed.prompt(0)[STREAM].shape == (0, model.hidden_size)
    assert mixed.prompt(1)[STREAM].shape[0] == (1 if reduce else 3)
