"""``python -m nnterp_vllm_core``: the command ``nnterp-vllm`` where its script is not on the path."""

from .cli import main

# An engine's spawned worker imports this module again.
if __name__ == "__main__":
    main()
