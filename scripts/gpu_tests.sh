#!/usr/bin/env bash
# The checks of a CUDA host, unattended: `make test-gpu`, or this script in an environment of your own.
#   OUT     folder for what it writes (default: gpu-out)
#   FAMILIES  pytest paths (default: tests/families)
#   CHECKS  which of the suite's promises, a pytest -k expression (default: all)
# It writes record.jsonl (largest gap of every value of every family), families.log and, with a checkpoint of SmolLM2 in
# .cache, smollm2.log. scripts/validation.py turns the record into docs/validation.md.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
out=${OUT:-gpu-out}
mkdir -p "$out"
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-ERROR} NNTERP_VLLM_RECORD="$out/record.jsonl"
"$python" -c 'import torch, vllm; assert torch.cuda.is_available(), "no CUDA device"; print("vLLM", vllm.__version__, torch.cuda.get_device_name())' || exit 1
status=0
"$python" -m pytest ${FAMILIES:-tests/families} -q --no-header --tb=short -p no:cacheprovider -k "${CHECKS:-test_}" >"$out/families.log" 2>&1 || status=1
tail -n 3 "$out/families.log"
if [ -d .cache/smollm2-135m ]; then
  "$python" -m nnterp_vllm_core agreement .cache/smollm2-135m --layer 12 >"$out/smollm2.log" 2>&1 || status=1
  tail -n 8 "$out/smollm2.log"
fi
exit $status
