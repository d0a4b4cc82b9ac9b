"""Makes the lint's modules importable and gives the tests small repositories to check."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "lint"))

from sources import Source  # noqa: E402


@pytest.fixture
def make_sources():
    """A function from {path: text} to the Sources a lint takes."""
    return lambda files: [Source(path, text) for path, text in files.items()]
