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

#: A tensor in the index: its group, where it starts in the group's buffer, and its shape.
_Place = tuple[int, int, tuple[int, ...]]
_Group = tuple[torch.dtype, torch.device]


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
        return unpack, (
            index.getvalue(),
            [(dtype, str(device), _bytes(members)) for (dtype, device), members in pickler.groups()],
        )


class _Pickler(pickle.Pickler):
    """Takes plain tensors out of the stream. Subclasses, sparse tensors and those that require grad stay in it."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._members: dict[_Group, list[torch.Tensor]] = {}
        self._sizes: dict[_Group, int] = {}
        self._order: dict[_Group, int] = {}
        self._seen: dict[int, _Place] = {}

    def groups(self) -> list[tuple[_Group, list[torch.Tensor]]]:
        """The tensors of each dtype and device, in the order in which the index counts them."""
        return list(self._members.items())

    def persistent_id(self, thing: Any) -> _Place | None:
        """The place of a tensor in its buffer; one that was saved under two names stays one."""
        if type(thing) is not torch.Tensor:
            return None
        place = self._seen.get(id(thing))
        if place is None:
            if thing.layout is not torch.strided or thing.requires_grad or thing.is_quantized:
                return None
            group = (thing.dtype, thing.device)
            members = self._members.setdefault(group, [])
            number = self._order.setdefault(group, len(self._order))
            start = self._sizes.get(group, 0)
            members.append(thing)
            self._sizes[group] = start + thing.numel()
            place = self._seen[id(thing)] = (number, start, tuple(thing.shape))
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: list[torch.Tensor]) -> None:
        super().__init__(file)
        self._buffers = buffers
        self._made: dict[_Place, torch.Tensor] = {}

    def persistent_load(self, place: _Place) -> torch.Tensor:
        """The tensor at a place, with memory of its own: saving it to a file must not write its neighbours."""
        tensor = self._made.get(place)
        if tensor is None:
            number, start, shape = place
            tensor = self._buffers[number][start : start + math.prod(shape)].clone().view(shape)
            self._made[place] = tensor
        return tensor


def _bytes(members: list[torch.Tensor]) -> bytes:
    flat = members[0].reshape(-1) if len(members) == 1 else torch.cat([tensor.reshape(-1) for tensor in members])
    raw: bytes = flat.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return raw


def unpack(index: bytes, buffers: list[tuple[torch.dtype, str, bytes]]) -> dict[str, Any]:
    """What `PackedSaves` becomes where it is unpickled: a plain dict."""
    flat = [
        torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).to(device)
        if raw
        else torch.empty(0, dtype=dtype, device=device)
        for dtype, device, raw in buffers
    ]
    found: dict[str, Any] = _Unpickler(io.BytesIO(index), flat).load()
    return found
