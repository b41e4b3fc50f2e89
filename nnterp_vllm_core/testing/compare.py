"""How far two engines are apart, and a message that says where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

#: Both sides compute in float32 and differ in the order of their sums; through a tiny model's four blocks that stays below
#: this share of a value's largest magnitude.
FLOAT32 = 1e-5

#: Twelve requests share each matrix product, and a float32 sum depends on how many rows share it. On CUDA the number of
#: rows chooses among kernels, whose tiles sum in other orders: 4.0e-6 was seen on an H200.
TOGETHER = 4.1e-6 if torch.cuda.is_available() else 2e-6

#: How many findings one message lists.
_LISTED = 12


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One promise that did not hold.

    Attributes:
        key: The value and its layer, ``layers.2.mlp.mlp_output``.
        observed: What was found.
        allowed: What would have been right.
    """

    key: str
    observed: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.key}: {self.observed}; allowed: {self.allowed}"


def report(who: str, promise: str, findings: Iterable[Finding]) -> str:
    """The message of a failed promise: who, what, and the findings, one a line."""
    found = list(findings)
    lines = [f"  {one}" for one in found[:_LISTED]]
    if len(found) > _LISTED:
        lines.append(f"  and {len(found) - _LISTED} more")
    return "\n".join([f"{who}: {promise}: {len(found)} findings", *lines])


def gap(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest difference, relative to the reference's largest magnitude; infinite where either holds no number."""
    ours, reference = ours.cpu(), reference.cpu()
    if not (torch.isfinite(ours).all() and torch.isfinite(reference).all()):
        return float("inf")
    scale = reference.abs().max().item()
    return (ours.float() - reference.float()).abs().max().item() / (scale or 1.0)


def compared(key: str, ours: torch.Tensor, reference: torch.Tensor, allowed: float) -> Finding | None:
    """What is wrong with one value, if anything."""
    ours, reference = ours.cpu(), reference.cpu()
    ours, reference = ours.cpu(), reference.cpu()
    if tuple(ours.shape) != tuple(reference.shape):
        return Finding(key=key, observed=f"shape {tuple(ours.shape)}", allowed=f"shape {tuple(reference.shape)}")
    if not reference.is_floating_point():
        same = torch.equal(ours.long(), reference.long())
        return None if same else Finding(key=key, observed=f"{ours.tolist()}", allowed=f"{reference.tolist()}")
    if key.endswith("attention_scores"):
        seen, hidden = _unmasked(ours), _unmasked(reference)
        if not torch.equal(seen, hidden):
            return Finding(key=key, observed=f"{int((seen != hidden).sum())} positions masked otherwise", allowed="none")
        ours, reference = ours[seen], reference[seen]
    observed = gap(ours, reference)
    if observed <= allowed:
        return None
    return Finding(key=key, observed=f"{observed:.1e} of its largest magnitude", allowed=f"{allowed:.1e}")


def _unmasked(scores: torch.Tensor) -> torch.Tensor:
    """Where a score is no mask's: a mask adds or leaves the dtype's lowest number, or minus infinity."""
    return scores > torch.finfo(scores.dtype).min / 2


def differences(
    ours: Mapping[str, torch.Tensor], reference: Mapping[str, torch.Tensor], allowed: Mapping[str, float]
) -> list[Finding]:
    """Every value that both sides have and that differs. ``allowed`` is by the value's name, else `FLOAT32`."""
    found = (
        compared(key, ours[key], reference[key], allowed.get(key.rpartition(".")[2], FLOAT32))
        for key in ours
        if key in reference
    )
    return [one for one in found if one is not None]
