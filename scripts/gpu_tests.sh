#!/usr/bin/env bash
# The checks of a CUDA host, unattended: `make test-gpu`, or this script in an environment of your own.
#   OUT      folder for what it writes (default: gpu-out)
#   TESTS    pytest paths (default: the families under the conformance suite, the specification page and all of tests/test_*.py)
#   CHECKS   a pytest -k expression (default: everything)
#   WORKERS  how many tests share the device where pytest-xdist is installed (default: three quarters of the cores)
# It writes record.jsonl (the largest gap of every value of every family; scripts/validation.py turns it into
# docs/validation.md), suite.log and alone.log, and with SmolLM2 in .cache how far it is from transformers in float32, with
# tf32 products, and in bfloat16.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
out=${OUT:-gpu-out}
mkdir -p "$out"
export HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-ERROR} NNTERP_VLLM_RECORD="$out/record.jsonl"
"$python" -c 'import torch, vllm; assert torch.cuda.is_available(), "no CUDA device"; print("vLLM", vllm.__version__, torch.cuda.get_device_name())' || exit 1
status=0 ran=0
tests() { # log, then pytest's arguments
  local log=$1
  shift
  "$python" -m pytest ${TESTS:-tests/families tests/test_*.py} -q --no-header --tb=short -p no:cacheprovider \
    -k "${CHECKS:-test_}" "$@" >"$out/$log" 2>&1
  local ended=$?
  [ $ended = 5 ] && return # none of the chosen tests is of this kind
  ran=1
  [ $ended = 0 ] || status=1
  tail -n 40 "$out/$log" | grep -E '^(FAILED|ERROR)|passed|failed|error'
}
parallel=()
if "$python" -c 'import xdist' 2>/dev/null; then
  parallel=(-n "${WORKERS:-$(($(nproc) * 3 / 4))}" --dist loadfile)
fi
tests suite.log -m 'not alone' "${parallel[@]}"
tests alone.log -m alone
[ $ran = 1 ] || { echo "No test was chosen: TESTS=${TESTS:-} CHECKS=${CHECKS:-}" && status=1; }
if [ -d .cache/smollm2-135m ]; then
  agreement() { "$python" -m nnterp_vllm_core agreement .cache/smollm2-135m --layer 12 "$@" 2>>"$out/agreement.err"; }
  { agreement && agreement --float32-products tf32 && agreement --dtype bfloat16; } >"$out/agreement.log" || status=1
  cat "$out/agreement.log"
fi
exit $status
