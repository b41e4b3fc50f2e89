"""Saves that nobody takes, sent by a child of this process while a file of its own waits; prints what is left, as JSON.

python unread.py spawn|fork
"""

import json
import multiprocessing
import pickle
import sys

import torch
from support.shared import files, move_in

from nnterp_vllm_core.worker import shared_memory
from nnterp_vllm_core.worker.saves import PackedSaves

move_in()  # the child imports this file again, or has its parent's memory


def send() -> None:
    """What a worker does when a driver collects, and no driver."""
    with shared_memory.Outbox(usable=True) as outbox:
        outbox.sealed(pickle.dumps(PackedSaves({"large": torch.zeros(shared_memory.LEAST)}), pickle.HIGHEST_PROTOCOL))


def child() -> None:
    """A worker whose driver never asks for what it sent."""
    for _ in range(3):
        send()


def main() -> None:
    """Write what was left after the child had ended."""
    send()
    own = files()
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child, daemon=True)
    process.start()
    process.join(120)
    print(json.dumps({"code": process.exitcode, "own": sorted(own), "left": sorted(files())}))


if __name__ == "__main__":
    main()
