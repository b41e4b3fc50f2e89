"""``python -m nnterp_vllm_core.cli``."""

from . import main

if __name__ == "__main__":
    main()
