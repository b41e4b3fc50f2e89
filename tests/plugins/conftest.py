"""Fixtures of the plugin platform's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .installs import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty folder of installed distributions."""
    folder = tmp_path / "site"
    folder.mkdir()
    return Site(folder)
