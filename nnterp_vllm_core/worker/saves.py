"""How saved values travel home: every tensor of one dtype and device in one buffer, for all requests that end together.

Pickled one by one, thousands of small tensors cost more than the forward that made them, and on a GPU each is a copy of
its own to the host. Packed, all requests of a collection cost one concatenation and one copy. What arrives are ordinary
tensors with memory of their own; the bytes are read by plain ``pickle.loads``. Large buffers travel beside the message
(`shared_memory`).
"""

from __future__ import annotations

import io
import itertools
import math
import operator
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
#: What torch multiplies on every device.
_MULTIPLIED = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
#: Requests are packed together up to about so many bytes, since what is packed exists twice for a while.
_BATCH = 64 << 20
#: A buffer: its bytes, or where they begin in the shared memory and how many they are.
_Buffer = bytearray | tuple[int, int]
#: How many requests it is of, their pickles without the tensors, the tensors' places, and the buffers.
_Content = tuple[int, bytes, list[_Place], list[tuple[torch.dtype, str, _Buffer]]]


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
        return operator.getitem, together.packed(self)


class Consignment:
    """The saves of the requests of one collection, packed many at a time when they are pickled."""

    def __init__(self) -> None:
        self._saves: deque[PackedSaves] = deque()
        self._packed: dict[int, tuple[PackedSaves, _Batch, int]] = {}

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

    def packed(self, saves: PackedSaves) -> tuple[_Batch, int]:
        """What unpickles as the saves of several requests, and which of them these are."""
        while id(saves) not in self._packed:  # they may be pickled in another order than they were added in
            pickler = _Pickler()
            batch: list[PackedSaves] = []
            while self._saves and pickler.nbytes < _BATCH:
                batch.append(self._saves.popleft())
                pickler.take(batch[-1])
            if not batch:  # pickled a second time
                batch.append(saves)
                pickler.take(saves)
            content = _packed(batch, pickler)
            self._packed.update((id(one), (one, content, number)) for number, one in enumerate(batch))
        _, content, number = self._packed.pop(id(saves))
        return content, number


class _Batch:
    """Saves of several requests, packed; a list of dicts where it arrives."""

    def __init__(self, content: _Content) -> None:
        self.content = content

    def __reduce__(self) -> Any:
        return unpack, self.content


class _Pickler(pickle.Pickler):
    """Takes plain tensors out of the stream and leaves their numbers; a list of tensors of one kind goes as a whole.

    Subclasses, sparse tensors and those that require grad stay in it.
    """

    def __init__(self) -> None:
        self.stream = io.BytesIO()
        super().__init__(self.stream, pickle.HIGHEST_PROTOCOL)
        self.groups: dict[_Group, list[torch.Tensor]] = {}
        self.tails: dict[_Group, set[tuple[int, ...] | None]] = {}  # the shapes of a group's tensors after the first axis
        self.places: list[_Place] = []
        self.nbytes = 0
        self._numbers: dict[_Group, int] = {}
        self._seen: dict[int, _Number] = {}
        self._kept: list[Any] = []  # a number goes by an object's id, which is free again when the object is gone

    def take(self, saves: PackedSaves) -> None:
        """Pickle a request's saves behind those that are there; what two requests saved arrives twice."""
        self.clear_memo()
        self._seen.clear()
        self.dump(dict(saves))

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
        self.nbytes += tensors[0].nbytes * (count or 1)
        if count is not None:
            self._seen.update((id(tensor), (number, index)) for index, tensor in enumerate(tensors))
        return number


def _plain(thing: torch.Tensor) -> bool:
    return thing.layout is torch.strided and not thing.requires_grad and not thing.is_quantized


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, things: list[Any]) -> None:
        super().__init__(file)
        self._things = things

    def persistent_load(self, number: _Number) -> Any:
        """The tensor or the list with that number."""
        if isinstance(number, tuple):
            return self._things[number[0]][number[1]]
        return self._things[number]


def _packed(batch: list[PackedSaves], pickler: _Pickler) -> _Batch:
    """What the pickler took of these."""
    buffers: list[tuple[torch.dtype, str, Any]] = []
    for group, tensors in pickler.groups.items():
        raw: Any = _bytes(tensors, pickler.tails[group])
        start = shared_memory.put(raw.data)
        # Bytes are pickled from where they are.
        buffers.append((group[0], str(group[1]), pickle.PickleBuffer(raw) if start is None else (start, raw.nbytes)))
    return _Batch((len(batch), pickler.stream.getvalue(), pickler.places, buffers))


def _bytes(tensors: list[torch.Tensor], tails: set[tuple[int, ...] | None]) -> Any:
    """The tensors' memory, one after another, in the host's: numpy's bytes."""
    # Tensors that differ in their first axis alone are, one after another, what they are flattened; most saves are such.
    alike = len(tails) == 1 and None not in tails
    parts = tensors if alike else [tensor.reshape(-1) for tensor in tensors]
    return torch.cat(parts).reshape(-1).cpu().view(torch.uint8).numpy()


def unpack(
    count: int, index: bytes, places: list[_Place], buffers: list[tuple[torch.dtype, str, _Buffer]]
) -> list[dict[str, Any]]:
    """What a batch becomes where it is unpickled: a plain dict for each request.

    Each tensor gets memory of its own: keeping or saving one must not keep or save its neighbours.
    """
    flat = [_flat(dtype, raw).to(device) for dtype, device, raw in buffers]
    begun = [0] * len(flat)
    pieces: list[list[torch.Tensor]] = [[] for _ in flat]
    for group, shape, several in places:
        size = math.prod(shape) * (several or 1)
        mine = flat[group][begun[group] : begun[group] + size]
        begun[group] += size
        pieces[group].extend([mine.view(shape)] if several is None else mine.view(several, *shape).unbind())
    own = [iter(_own(group)) for group in pieces]
    things = [
        next(own[group]) if several is None else list(itertools.islice(own[group], several)) for group, _, several in places
    ]
    unpickler = _Unpickler(io.BytesIO(index), things)
    return [unpickler.load() for _ in range(count)]


def _flat(dtype: torch.dtype, raw: _Buffer) -> torch.Tensor:
    if isinstance(raw, tuple):
        start, size = raw
        return torch.frombuffer(shared_memory.inbox(), dtype=torch.uint8, count=size, offset=start).view(dtype)
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)


def _own(pieces: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of pieces of one memory."""
    if pieces and pieces[0].is_cuda and pieces[0].dtype in _MULTIPLIED:
        # A few kernels for all of them, where `clone` launches one for each. Times one is what it was, to the bit, but that
        # a signalling NaN becomes a quiet one.
        return list(torch._foreach_mul(pieces, 1))
    return [piece.clone() for piece in pieces]
