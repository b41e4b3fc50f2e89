"""Write the reference of the hooks into docs/plugins.md, from the hook specifications themselves.

    python scripts/hook_reference.py

A test fails when the page and the code differ.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from nnterp_vllm_core import hookspecs

PAGE = Path(__file__).resolve().parent.parent / "docs" / "plugins.md"
PART = re.compile(r"(?<=<!-- hooks: begin -->\n).*?(?=<!-- hooks: end -->)", re.DOTALL)


def render() -> str:
    """The reference, hook by hook in the order of the specifications."""
    parts = []
    for name, hook in vars(hookspecs).items():
        if not name.startswith("nnterp_vllm_"):
            continue
        arguments = ", ".join(str(one) for one in inspect.signature(hook).parameters.values()).replace("'", "")
        returns = str(inspect.signature(hook).return_annotation).replace("'", "")
        text = inspect.cleandoc(hook.__doc__ or "").replace("``", "`")
        text = re.sub(r"^(Args|Returns):$", r"**\1**\n", text, flags=re.MULTILINE)
        text = re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
        text = re.sub(r"^    (?=\S)", "", text, flags=re.MULTILINE)
        parts.append(f"### `{name}`\n\n```python\ndef {name}({arguments}) -> {returns}\n```\n\n{text}\n")
    return "\n" + "\n".join(parts) + "\n"


def main() -> None:
    PAGE.write_text(PART.sub(lambda _: render(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
