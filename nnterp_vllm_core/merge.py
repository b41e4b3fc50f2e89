"""Containers that several invokes share: one object where the forward runs here, one copy per request on vLLM.

A name bound and saved above the invokes (``out = nnsight.save([])``) travels with every request, and every request sends
its own copy home. nnsight merges lists of one length slot by slot, so of three requests that each append one item only the
last one's would be left. Here the copies are compared with what was sent: what each request added or changed is put
together in the order in which the requests were submitted, as if one object had been there all along. (There, a list that
several rows append to at several layers has them layer by layer; here each request's items stay together.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from .errors import NnterpVLLMError


def unite(mediators: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Replace the requests' copies of each shared container by one, before nnsight brings the saves home.

    Args:
        mediators: The trace's blocks, with what they sent.
        outputs: The finished requests, in the order in which they were submitted.

    Raises:
        NnterpVLLMError: Requests changed one container in ways that have no common result.
    """
    sent = {name: one.lcls[name] for one in mediators for name in getattr(one, "presaved", ()) if name in one.lcls}
    for name, base in sent.items():
        runs = [_runs(output) for output in outputs]
        having = [run for sequences in runs for run in sequences if name in run]
        if sum(any(name in run for run in sequences) for sequences in runs) < 2 or not _shared(base):
            continue
        merged = _merged(name, base, [run[name] for run in having])
        # One holder is left, so nnsight takes the name for one that a single request saved.
        for run in having:
            del run[name]
        having[0][name] = merged


def _runs(output: Any) -> list[dict[str, Any]]:
    """What each sampled sequence of a request saved, in dicts of our own: what a user reads off the output stays."""
    found = getattr(output, "nnsight_sequences", None) or [getattr(output, "nnsight_saves", {})]
    output.nnsight_sequences = [dict(run) for run in found]
    sequences: list[dict[str, Any]] = output.nnsight_sequences
    return sequences


def _shared(base: Any) -> bool:
    return isinstance(base, list | dict | set | torch.Tensor)


def _merged(name: str, base: Any, copies: list[Any]) -> Any:
    """``base`` with what every copy did to it; the last copy where ``base`` is nothing that can be changed in place."""
    if isinstance(base, list) and all(isinstance(copy, list) for copy in copies):
        if any(len(copy) < len(base) for copy in copies):
            raise NnterpVLLMError(
                f"{name}: a request took items out of a list that several requests share, and each has a copy of its own. "
                f"Only add items or assign slots in a block; take items out after the trace."
            )
        slots = [_merged(name, item, [copy[index] for copy in copies]) for index, item in enumerate(base)]
        return slots + [item for copy in copies for item in copy[len(base) :]]
    if isinstance(base, dict) and all(isinstance(copy, dict) for copy in copies):
        keys = dict.fromkeys(key for copy in (base, *copies) for key in copy)
        return {key: _entry(name, base, key, [copy[key] for copy in copies if key in copy]) for key in keys}
    if isinstance(base, set) and all(isinstance(copy, set) for copy in copies):
        return base.union(*copies)
    if isinstance(base, torch.Tensor) and all(_alike(base, copy) for copy in copies):
        return _elements(name, base, copies)
    changed = [copy for copy in copies if not _same(base, copy)]
    if len(changed) > 1 and isinstance(base, int | float):
        raise NnterpVLLMError(
            f"{name}: {len(changed)} requests changed one number, and each has a copy of its own, so their sum is not "
            f"known. Append to a saved list instead and combine after the trace."
        )
    return changed[-1] if changed else base


def _entry(name: str, base: dict[Any, Any], key: Any, found: list[Any]) -> Any:
    if key in base:
        return _merged(f"{name}[{key!r}]", base[key], found)
    if isinstance(base, defaultdict) and base.default_factory is not None:
        return _merged(f"{name}[{key!r}]", base.default_factory(), found)
    if len(found) > 1 and all(isinstance(one, list | dict | set) for one in found):
        raise NnterpVLLMError(
            f"{name}[{key!r}]: {len(found)} requests each made a {type(found[0]).__name__} there, and whether they mean one "
            f"or many is not known. Make it above the invokes, or use a key for each request."
        )
    return found[-1]  # assigned anew, so the later assignment holds


def _same(item: Any, copy: Any) -> bool:
    """Whether a request sent back what it was sent, as far as that can be told."""
    if isinstance(item, torch.Tensor):
        return _alike(item, copy) and torch.equal(item, copy.to(item.device))
    plain = int | float | str | bytes | bool | None
    return isinstance(item, plain) and isinstance(copy, plain) and bool(item == copy)


def _alike(base: torch.Tensor, copy: Any) -> bool:
    return isinstance(copy, torch.Tensor) and copy.shape == base.shape and copy.dtype == base.dtype


def _elements(name: str, base: torch.Tensor, copies: list[torch.Tensor]) -> torch.Tensor:
    merged = base.clone()
    written = torch.zeros(base.shape, dtype=torch.bool, device=base.device)
    for copy in (one.to(base.device) for one in copies):
        changed = (copy != base) & ~(copy.isnan() & base.isnan())
        if bool((changed & written).any()):
            raise NnterpVLLMError(
                f"{name}: several requests changed the same elements of one tensor, and each has a copy of its own, so "
                f"neither their sum nor their order is known. Append to a saved list instead and combine after the trace."
            )
        merged = torch.where(changed, copy, merged)
        written |= changed
    return merged
