"""How saved values travel home: every tensor of one dtype and device in one buffer, for all requests that end together.

Pickled one by one, thousands of small tensors cost more than the forward that made them, and on a GPU each is a copy of
its own to the host. Packed, all requests of a collection cost one concatenation and one copy. What arrives are ordinary
tensors with memory of their own; the bytes are read by plain ``pickle.loads``. Large buffers travel beside the message
(`shared_memory`).
"""

from __future__ import annotations

import io
import math
import pickle
import threading
from collections import deque
from typing import Any

import torch
from nnsight.modeling.vllm.model_runners.GPUModelRunner import Request

from . import shared_memory

_local = threading.local()

_Group = tuple[torch.dtype, torch.device]
#: The number of a group, the shape of a tensor there, and of how many tensors it is a list, or ``None`` for a tensor.
_Place = tuple[int, tuple[int, ...], int | None]
#: A place's number, and an index where one tensor of a list is meant.
_Number = int | tuple[int, int]
#: Requests are packed together up to about so many bytes, since what is packed exists twice for a while.
_BATCH = 64 << 20
#: A buffer: its bytes, or where they begin in the shared memory and how many they are.
_Buffer = bytearray | tuple[int, int]
#: A pickle of all but the tensors, their places, and the buffers.
_Content = tuple[bytes, list[_Place], list[tuple[torch.dtype, str, _Buffer]]]


class StandardRequest(Request):
    """nnsight's record of a request, whose saves are packed when they are pickled."""

    __slots__ = ()

    def saves(self) -> dict[str, Any]:
        """The block's names that were saved, with their values."""
        saves = PackedSaves(super().saves())
        together: Consignment | None = getattr(_local, "consignment", None)
        if together is not None:
            together.add(saves)
        return saves


class PackedSaves(dict[str, Any]):
    """A request's saves; an ordinary dict here and where it arrives."""

    consignment: Consignment | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        together = self.consignment
        if together is None:
            together = Consignment()
            together.add(self)
        return unpack, together.packed(self)


class Consignment:
    """The saves of the requests of one collection, packed many at a time when they are pickled."""

    def __init__(self) -> None:
        self._saves: deque[PackedSaves] = deque()
        self._packed: dict[int, tuple[_Picked, _Content]] = {}

    def __enter__(self) -> Consignment:
        _local.consignment = self
        return self

    def __exit__(self, *_: Any) -> None:
        del _local.consignment
        for saves in self._saves:  # nobody pickles them here: another rank reports
            saves.consignment = None
        self._saves.clear()

    def add(self, saves: PackedSaves) -> None:
        """Take a request's saves along."""
        saves.consignment = self
        self._saves.append(saves)

    def packed(self, saves: PackedSaves) -> _Content:
        """What `unpack` takes for one request."""
        while id(saves) not in self._packed:
            batch, size = [], 0
            while self._saves and size < _BATCH:
                batch.append(_Picked(self._saves.popleft()))
                size += batch[-1].nbytes
            batch = batch or [_Picked(saves)]  # pickled a second time
            for picked, content in zip(batch, _packed(batch), strict=True):
                self._packed[id(picked.saves)] = (picked, content)
        return self._packed.pop(id(saves))[1]


class _Pickler(pickle.Pickler):
    """Takes plain tensors out of the stream and leaves their numbers; a list of tensors of one kind goes as a whole.

    Subclasses, sparse tensors and those that require grad stay in it.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.groups: dict[_Group, list[torch.Tensor]] = {}
        self.tails: dict[_Group, set[tuple[int, ...] | None]] = {}  # the shapes of a group's tensors after the first axis
        self.places: list[_Place] = []
        self._numbers: dict[_Group, int] = {}
        self._seen: dict[int, _Number] = {}
        self._kept: list[Any] = []  # a number goes by an object's id, which is free again when the object is gone

    def persistent_id(self, thing: Any) -> _Number | None:
        """The number of a tensor or of a list of tensors; one that was saved under two names stays one."""
        if type(thing) is torch.Tensor:
            number = self._seen.get(id(thing))
            return self._place([thing], thing, None) if number is None and _plain(thing) else number
        if type(thing) is list and len(thing) > 1 and type(thing[0]) is torch.Tensor:
            number = self._seen.get(id(thing))
            return self._place(thing, thing, len(thing)) if number is None and self._alike(thing) else number
        return None

    def _alike(self, things: list[Any]) -> bool:
        """Whether these are plain tensors of one dtype, device and shape, none of them twice or numbered before."""
        first = things[0]
        if set(map(type, things)) != {torch.Tensor} or not all(map(_plain, things)):
            return False
        if len({(thing.dtype, thing.device, thing.shape) for thing in things}) > 1:
            return False
        known = set(map(id, things))
        return len(known) == len(things) and first.numel() > 0 and known.isdisjoint(self._seen)

    def _place(self, tensors: list[torch.Tensor], thing: Any, count: int | None) -> int:
        group = (tensors[0].dtype, tensors[0].device)
        self.groups.setdefault(group, []).extend(tensors)
        self.tails.setdefault(group, set()).add(tuple(tensors[0].shape[1:]) if tensors[0].ndim else None)
        self._kept.append(thing)
        number = self._seen[id(thing)] = len(self.places)
        self.places.append((self._numbers.setdefault(group, len(self._numbers)), tuple(tensors[0].shape), count))
        if count is not None:
            self._seen.update((id(tensor), (number, index)) for index, tensor in enumerate(tensors))
        return number


def _plain(thing: torch.Tensor) -> bool:
    return thing.layout is torch.strided and not thing.requires_grad and not thing.is_quantized


class _Picked:
    """A request's saves, pickled but for the tensors."""

    def __init__(self, saves: PackedSaves) -> None:
        self.saves = saves
        stream = io.BytesIO()
        self.tensors = _Pickler(stream)
        self.tensors.dump(dict(saves))
        self.index = stream.getvalue()
        self.sizes = {group: sum(one.nbytes for one in tensors) for group, tensors in self.tensors.groups.items()}
        self.nbytes = sum(self.sizes.values())


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, things: list[Any]) -> None:
        super().__init__(file)
        self._things = things

    def persistent_load(self, number: _Number) -> Any:
        """The tensor or the list with that number."""
        if isinstance(number, tuple):
            return self._things[number[0]][number[1]]
        return self._things[number]


def _packed(many: list[_Picked]) -> list[_Content]:
    """`Consignment.packed` of each."""
    buffers: list[dict[_Group, Any]] = [{} for _ in many]
    for group in dict.fromkeys(group for one in many for group in one.sizes):
        members = [(number, one) for number, one in enumerate(many) if group in one.sizes]
        tails = set().union(*(one.tensors.tails[group] for _, one in members))
        raw: Any = _bytes([tensor for _, one in members for tensor in one.tensors.groups[group]], tails)
        start, begun = shared_memory.put(raw.data), 0
        for number, one in members:
            size = one.sizes[group]
            mine: Any = pickle.PickleBuffer(raw[begun : begun + size])  # bytes are pickled from where they are
            if start is not None:
                mine = (start + begun, size) if size else bytearray()
            buffers[number][group] = (group[0], str(group[1]), mine)
            begun += size
    # A request's places number its groups in their own order.
    return [
        (one.index, one.tensors.places, [mine[group] for group in one.sizes])
        for one, mine in zip(many, buffers, strict=True)
    ]


def _bytes(tensors: list[torch.Tensor], tails: set[tuple[int, ...] | None]) -> Any:
    """The tensors' memory, one after another, in the host's: numpy's bytes."""
    # Tensors that differ in their first axis alone are, one after another, what they are flattened; most saves are such.
    alike = len(tails) == 1 and None not in tails
    parts = tensors if alike else [tensor.reshape(-1) for tensor in tensors]
    return torch.cat(parts).reshape(-1).cpu().view(torch.uint8).numpy()


def unpack(index: bytes, places: list[_Place], buffers: list[tuple[torch.dtype, str, _Buffer]]) -> dict[str, Any]:
    """What `PackedSaves` becomes where it is unpickled: a plain dict.

    Each tensor gets memory of its own: keeping or saving one must not keep or save its neighbours.
    """
    flat = [_flat(dtype, raw).to(device) for dtype, device, raw in buffers]
    begun = [0] * len(flat)
    things: list[Any] = []
    for group, shape, count in places:
        size = math.prod(shape) * (count or 1)
        mine = flat[group][begun[group] : begun[group] + size]
        begun[group] += size
        things.append(mine.clone().view(shape) if count is None else _listed(mine.view(count, *shape)))
    found: dict[str, Any] = _Unpickler(io.BytesIO(index), things).load()
    return found


def _flat(dtype: torch.dtype, raw: _Buffer) -> torch.Tensor:
    if isinstance(raw, tuple):
        start, size = raw
        return torch.frombuffer(shared_memory.inbox(), dtype=torch.uint8, count=size, offset=start).view(dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)


def _listed(stacked: torch.Tensor) -> list[torch.Tensor]:
    """The rows of the first axis, each with memory of its own."""
    rows: Any = torch.unbind_copy(stacked)  # type: ignore[func-returns-value]  # torch declares its out= form alone
    return list(rows)
