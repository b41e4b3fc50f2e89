"""``python -m nnterp_vllm_core.cli``."""

from . import main

main()
