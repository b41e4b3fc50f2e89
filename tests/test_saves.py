"""A request's saved values travel packed and arrive as they were: values, types, identities, memory of their own."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support import scripts
from support.shared import VARIABLE, files, own_folder

from nnterp_vllm_core import NnterpVLLMError
from nnterp_vllm_core.worker import saves as saves_module
from nnterp_vllm_core.worker import shared_memory
from nnterp_vllm_core.worker.saves import Consignment, PackedSaves


class Pair(NamedTuple):
    first: torch.Tensor
    rest: list[torch.Tensor]


class Fresh:
    """Its state is made while it is pickled and gone afterwards, so its objects' ids are soon others'."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> dict[str, Any]:
        return {"number": self.number, "made": [torch.full((3,), float(self.number)), torch.full((3,), -float(self.number))]}


def arrived(saves: dict[str, Any]) -> Any:
    return pickle.loads(pickle.dumps(PackedSaves(saves), pickle.HIGHEST_PROTOCOL))


def assert_same(found: Any, sent: Any) -> None:
    assert type(found) is type(sent)
    if isinstance(sent, torch.Tensor):
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        assert torch.equal(found, sent)
        assert found.untyped_storage().nbytes() == sent.numel() * sent.element_size()
    elif isinstance(sent, dict):
        assert list(found) == list(sent)
        for key in sent:
            assert_same(found[key], sent[key])
    elif isinstance(sent, list | tuple):
        assert len(found) == len(sent)
        for ours, theirs in zip(found, sent, strict=True):
            assert_same(ours, theirs)
    else:
        assert found == sent


BASE = torch.arange(24.0).reshape(2, 3, 4)
CASES: dict[str, Any] = {
    "a tensor": BASE,
    "slices of one memory": [row[:, -1] for row in BASE],
    "a transposed tensor": [BASE.transpose(0, 2), BASE.transpose(0, 2) + 1],
    "lists of one kind": [[torch.ones(2, 3) * i for i in range(5)], [torch.zeros(2, 3) - i for i in range(3)]],
    "shapes that differ": [torch.ones(2, 3), torch.ones(4, 3), torch.ones(4)],
    "first axes that differ": [torch.ones(2, 3), torch.zeros(5, 3)],
    "numbers of rank zero and one": [torch.tensor(1.0), torch.tensor([2.0, 3.0]), torch.tensor(4.0)],
    "numbers of rank zero": [torch.tensor(1.0), torch.tensor(2.0)],
    "nothing in them": [torch.empty(0, 3), torch.empty(0, 3)],
    "a list with nothing in it": [],
    "dtypes that differ": [torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2).bool(), torch.ones(2).bfloat16()],
    "half precision": [torch.randn(3).bfloat16() for _ in range(4)],
    "complex numbers": [torch.randn(3, dtype=torch.complex64) for _ in range(2)],
    "other things between": [torch.ones(2), None, torch.ones(2), "text"],
    "a tuple of tensors": (torch.ones(2), torch.zeros(2)),
    "a named pair": Pair(torch.ones(2), [torch.zeros(3), torch.ones(3)]),
    "a dictionary": {0: torch.ones(2), "deep": {"er": [torch.zeros(2), torch.ones(2)]}},
}


@pytest.mark.parametrize("case", CASES)
def test_a_value_arrives_as_it_was(case: str) -> None:
    assert_same(arrived({"value": CASES[case]})["value"], CASES[case])


def test_all_of_them_arrive_together() -> None:
    assert_same(arrived(CASES), CASES)


def test_one_object_under_two_names_stays_one() -> None:
    one, listed = torch.ones(2), [torch.zeros(3), torch.ones(3)]
    found = arrived({"a": one, "b": one, "list": listed, "again": listed, "item": listed[1], "mixed": [listed[0], one]})
    assert found["a"] is found["b"]
    assert found["list"] is found["again"]
    assert found["item"] is found["list"][1]
    assert found["mixed"][0] is found["list"][0]
    assert found["mixed"][1] is found["a"]


def test_a_tensor_that_is_in_a_list_twice_stays_one() -> None:
    one = torch.ones(2)
    found = arrived({"list": [one, torch.zeros(2), one]})["list"]
    assert found[0] is found[2]
    assert found[1].tolist() == [0.0, 0.0]


def test_a_tensor_that_was_saved_before_its_list_stays_one() -> None:
    listed = [torch.zeros(3), torch.ones(3)]
    found = arrived({"item": listed[1], "list": listed})
    assert found["item"] is found["list"][1]


def test_what_is_made_while_it_is_pickled_is_not_taken_for_another() -> None:
    found = arrived({"things": [Fresh(number) for number in range(200)]})["things"]
    for number, thing in enumerate(found):
        assert thing.number == number
        assert [tensor.tolist() for tensor in thing.made] == [[number] * 3, [-number] * 3]


def test_a_subclass_and_a_tensor_that_requires_grad_arrive_as_what_they_are() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    found = arrived({"parameters": [parameter, parameter], "grad": [torch.ones(2, requires_grad=True) for _ in range(2)]})
    assert type(found["parameters"][0]) is torch.nn.Parameter
    assert all(tensor.requires_grad for tensor in found["grad"])


# --- shared memory ----------------------------------------------------------------------------------------------------

in_shared_memory = pytest.mark.skipif(shared_memory.common_memory() is None, reason="this host has no /dev/shm")
LARGE: dict[str, Any] = {
    "list": [torch.randn(50, 401) for _ in range(3)],
    "odd": torch.arange(shared_memory.LEAST + 1).to(torch.uint8),
    "half": torch.randn(40_000).bfloat16(),
    "small": torch.arange(5),
}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where this test's files go, and no others."""
    with own_folder() as folder:
        monkeypatch.setattr(shared_memory, "FOLDER", folder)
        yield folder


def sent(saves: dict[str, Any], usable: bool = True) -> bytes:
    """What a collection of two requests sends."""
    with shared_memory.Outbox(usable) as outbox:
        return outbox.sealed(pickle.dumps([PackedSaves(saves), PackedSaves(saves)], pickle.HIGHEST_PROTOCOL))


def together(many: list[dict[str, Any]]) -> bytes:
    """What a collection of these requests sends, packed as one."""
    with Consignment() as consignment:
        saves = [PackedSaves(one) for one in many]
        for one in saves:
            consignment.add(one)
        return pickle.dumps(saves, pickle.HIGHEST_PROTOCOL)


@pytest.mark.parametrize("usable", [False, True], ids=["in the message", "in shared memory"])
def test_requests_that_end_together_arrive_as_they_were(usable: bool) -> None:
    before = files()
    many = [CASES, {}, LARGE, {"nothing": torch.empty(0)}, {"one": BASE}, LARGE, {"other": [torch.ones(2)], "text": "a"}]
    with shared_memory.Outbox(usable) as outbox:
        message = outbox.sealed(together(many))
    found = pickle.loads(message)
    assert len(found) == len(many)
    for ours, theirs in zip(found, many, strict=True):
        assert_same(ours, theirs)
    assert files() == before


@in_shared_memory
def test_small_saves_of_many_requests_are_one_buffer() -> None:
    """Sixty-four requests of four kilobytes: too small for the shared memory one by one, and large together."""
    many = [{"streams": [torch.randn(1, 32) + row for _ in range(32)]} for row in range(64)]
    before = files()
    with shared_memory.Outbox(usable=True) as outbox:
        message = outbox.sealed(together(many))
    assert len(message) < 32_000  # of 262,144 bytes
    for ours, theirs in zip(pickle.loads(message), many, strict=True):
        assert_same(ours, theirs)
    assert files() == before


@pytest.mark.parametrize(
    ("bound", "batches"),
    [(1, [1] * 23), (5_000, [4, 1, 1, 5, 5, 5, 2]), (200_000, [4, 1, 1, 17])],
    ids=["each alone", "a few", "all but large ones"],
)
def test_requests_are_packed_together_up_to_a_bound(bound: int, batches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    many = [{"row": torch.full((1, 300), float(number))} for number in range(20)]
    many[3:3] = [LARGE, LARGE, LARGE]
    joined: list[int] = []
    packed = saves_module._packed

    def counted(batch: list[Any], pickler: Any) -> Any:
        joined.append(len(batch))
        return packed(batch, pickler)

    monkeypatch.setattr(saves_module, "_BATCH", bound)
    monkeypatch.setattr(saves_module, "_packed", counted)
    for ours, theirs in zip(pickle.loads(together(many)), many, strict=True):
        assert_same(ours, theirs)
    assert joined == batches


def test_what_two_requests_saved_arrives_twice() -> None:
    """Requests save the workers' own objects too, and what a user does to one request's must not reach another's."""
    own = {"tensor": torch.ones(2), "list": [torch.zeros(3), torch.ones(3)], "made": {"kept": [1, 2]}}
    first, second = pickle.loads(together([own, own]))
    first["tensor"].zero_()
    first["list"][0].fill_(9.0)
    first["made"]["kept"].append(3)
    assert_same(second, own)


@pytest.mark.parametrize("bound", [1, 200_000], ids=["each alone", "together"])
def test_the_order_of_pickling_is_free_and_a_second_time_gives_the_same(bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves_module, "_BATCH", bound)
    many = [{"row": torch.full((1, 3), float(number))} for number in range(4)]
    with Consignment() as consignment:
        saves = [PackedSaves(one) for one in many]
        for one in saves:
            consignment.add(one)
        messages = [pickle.dumps(saves[number], pickle.HIGHEST_PROTOCOL) for number in (2, 0, 2, 3)]
    for message, number in zip(messages, (2, 0, 2, 3), strict=True):
        assert_same(pickle.loads(message), many[number])


def test_saves_that_nobody_pickled_are_let_go() -> None:
    saves = PackedSaves({"value": torch.ones(2)})
    with Consignment() as consignment:
        consignment.add(saves)
    assert saves.consignment is None
    assert_same(pickle.loads(pickle.dumps(saves, pickle.HIGHEST_PROTOCOL)), {"value": torch.ones(2)})


@in_shared_memory
def test_large_saves_travel_beside_the_message_and_leave_nothing() -> None:
    before = files()
    message = sent(LARGE)
    (name,) = files() - before
    assert len(message) < 10_000
    assert os.stat(shared_memory.FOLDER / name).st_mode & 0o077 == 0
    for found in pickle.loads(message):
        assert_same(found, LARGE)
    assert files() == before


@in_shared_memory
def test_small_saves_need_no_file() -> None:
    before = files()
    message = sent({"small": LARGE["small"]})
    assert files() == before
    assert_same(pickle.loads(message)[0], {"small": LARGE["small"]})


def test_without_common_memory_all_of_it_is_in_the_message() -> None:
    before = files()
    message = sent(LARGE, usable=False)
    assert len(message) > 2 * 4 * 3 * 50 * 401
    assert files() == before
    for found in pickle.loads(message):
        assert_same(found, LARGE)


@in_shared_memory
def test_what_does_not_fit_travels_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(shared_memory.FOLDER)
    nearly_full = os.statvfs_result((*room[:4], 10, *room[5:]))
    monkeypatch.setattr(shared_memory.os, "statvfs", lambda folder: nearly_full)
    before = files()
    message = sent(LARGE)
    assert files() == before
    assert_same(pickle.loads(message)[1], LARGE)


@in_shared_memory
def test_a_file_that_somebody_took_away_is_an_error_with_the_way_out() -> None:
    before = files()
    message = sent(LARGE)
    (name,) = files() - before
    (shared_memory.FOLDER / name).unlink()
    with pytest.raises(NnterpVLLMError, match=r"shared memory.*NNTERP_VLLM_SHARED_MEMORY=0"):
        pickle.loads(message)


@in_shared_memory
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_nobody_took_goes_with_the_process_that_sent_it(method: str, folder: Path) -> None:
    # Not from this process: what it forked would hang in the locks of its engines' threads. One thread there likewise.
    done = scripts.run(scripts.TESTS / "scripts" / "unread.py", method, OMP_NUM_THREADS="1", **{VARIABLE: str(folder)})
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0
    assert len(found["own"]) == 1
    assert found["left"] == found["own"]  # the child's are gone, its parent's is not the child's to take
    assert files() == set()


@in_shared_memory
def test_files_that_were_taken_are_not_remembered() -> None:
    for _ in range(5):
        pickle.loads(sent(LARGE))
    assert len(shared_memory._sent) <= 1


def test_the_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared_memory.VARIABLE, "0")
    assert shared_memory.common_memory() is None
