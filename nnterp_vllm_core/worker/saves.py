"""How a request's saved values travel home: every tensor of one dtype and device in one buffer.

Pickled one by one, thousands of small tensors cost more than the forward that made them, and on a GPU each is a copy of
its own to the host. Packed, a request costs one concatenation and one copy. What arrives are ordinary tensors with memory
of their own; the bytes are read by plain ``pickle.loads``.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any

import torch
from nnsight.modeling.vllm.model_runners.GPUModelRunner import Request

_Group = tuple[torch.dtype, torch.device]
#: A tensor: the number of its group, and its shape. Its place among the group's tensors is its turn.
_Place = tuple[int, tuple[int, ...]]


class StandardRequest(Request):
    """nnsight's record of a request, whose saves are packed when they are pickled."""

    __slots__ = ()

    def saves(self) -> dict[str, Any]:
        """The block's names that were saved, with their values."""
        return PackedSaves(super().saves())


class PackedSaves(dict[str, Any]):
    """A request's saves; an ordinary dict here and where it arrives."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        index = io.BytesIO()
        pickler = _Pickler(index)
        pickler.dump(dict(self))
        buffers = [(dtype, str(device), _bytes(tensors)) for (dtype, device), tensors in pickler.groups.items()]
        return unpack, (index.getvalue(), pickler.places, buffers)


class _Pickler(pickle.Pickler):
    """Takes plain tensors out of the stream and leaves their numbers.

    Subclasses, sparse tensors and those that require grad stay in it.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.groups: dict[_Group, list[torch.Tensor]] = {}
        self.places: list[_Place] = []
        self._numbers: dict[_Group, int] = {}
        self._seen: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> int | None:
        """A tensor's number; one that was saved under two names stays one."""
        if type(thing) is not torch.Tensor:
            return None
        number = self._seen.get(id(thing))
        if number is None:
            if thing.layout is not torch.strided or thing.requires_grad or thing.is_quantized:
                return None
            group = (thing.dtype, thing.device)
            self.groups.setdefault(group, []).append(thing)
            number = self._seen[id(thing)] = len(self.places)
            self.places.append((self._numbers.setdefault(group, len(self._numbers)), tuple(thing.shape)))
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> torch.Tensor:
        """The tensor with that number."""
        return self._tensors[number]


def _bytes(tensors: list[torch.Tensor]) -> bytes:
    flat = tensors[0].reshape(-1) if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])
    raw: bytes = flat.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return raw


def unpack(index: bytes, places: list[_Place], buffers: list[tuple[torch.dtype, str, bytes]]) -> dict[str, Any]:
    """What `PackedSaves` becomes where it is unpickled: a plain dict.

    Each tensor gets memory of its own: keeping or saving one must not keep or save its neighbours.
    """
    sizes: list[list[int]] = [[] for _ in buffers]
    for group, shape in places:
        sizes[group].append(math.prod(shape))
    parts = []
    for (dtype, device, raw), lengths in zip(buffers, sizes, strict=True):
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype) if raw else torch.empty(0, dtype=dtype)
        pieces: tuple[torch.Tensor, ...] = torch.split(flat.to(device), lengths)
        parts.append(iter(pieces))
    tensors = [next(parts[group]).clone().view(shape) for group, shape in places]
    found: dict[str, Any] = _Unpickler(io.BytesIO(index), tensors).load()
    return found
