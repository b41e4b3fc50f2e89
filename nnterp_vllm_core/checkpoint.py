"""What a checkpoint's config.json says: its ``model_type`` and its sizes, without weights and without an engine."""

from __future__ import annotations

import os
from typing import Any

from .errors import CheckpointNotFound

#: Arguments that decide *which* config is read; the rest of a model's arguments do not matter here.
_READING = ("revision", "trust_remote_code", "token", "cache_dir")


def read_config(repo_id: str, **kwargs: Any) -> Any:
    """The checkpoint's config, as transformers reads it.

    Args:
        repo_id: A repo id or a path.
        **kwargs: A model's arguments; ``revision`` and ``trust_remote_code`` are used.

    Raises:
        CheckpointNotFound: The path or the repo does not exist, or has no config.json.
    """
    from transformers import AutoConfig

    path = os.path.expanduser(repo_id)
    looks_local = os.path.isabs(path) or path.startswith((".", "~")) or repo_id.count("/") > 1
    if looks_local and not os.path.isdir(path):
        raise CheckpointNotFound(
            f"No checkpoint folder at {repo_id!r}: the path does not exist or is no folder. Give a folder that holds "
            f"config.json, or a repo id such as 'Qwen/Qwen2.5-0.5B'."
        )
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json")):
        raise CheckpointNotFound(f"{repo_id!r} holds no config.json; its files are {sorted(os.listdir(path))[:8]!r}.")
    options = {key: kwargs[key] for key in _READING if kwargs.get(key) is not None}
    try:
        return AutoConfig.from_pretrained(path if os.path.isdir(path) else repo_id, **options)
    except OSError as error:
        raise CheckpointNotFound(
            f"{repo_id!r} is no folder here and no repo that can be reached: {str(error).splitlines()[0]} "
            f"Check the spelling, the network and HF_HUB_OFFLINE."
        ) from error


def raw_model_type(repo_id: str) -> str | None:
    """The ``model_type`` as config.json spells it, for a type that transformers does not know."""
    import json

    try:
        with open(os.path.join(os.path.expanduser(repo_id), "config.json"), encoding="utf-8") as file:
            found = json.load(file).get("model_type")
    except (OSError, ValueError):
        return None
    return None if found is None else str(found)


def raw_config(repo_id: str) -> dict[str, Any]:
    """A checkpoint's config.json as it is, without transformers: from a folder, the hub's cache or the hub.

    Raises:
        CheckpointNotFound: There is no such folder or repo, or it holds no readable config.json.
    """
    import json

    path = os.path.join(os.path.expanduser(repo_id), "config.json")
    try:
        if not os.path.isdir(os.path.dirname(path)):
            from huggingface_hub import hf_hub_download

            path = hf_hub_download(repo_id, "config.json")
        with open(path, encoding="utf-8") as file:
            config: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise CheckpointNotFound(
            f"No config.json for {repo_id!r}: {str(error).splitlines()[0]} Give a folder that holds one, or a repo id such "
            f"as 'Qwen/Qwen2.5-0.5B'."
        ) from error
    return config


def text_config(config: Any) -> Any:
    """The part of a config that describes the language model; itself for a text-only model."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config
