"""The repository itself keeps its rules."""

import os
import pathlib

import arrows
import pytest
import tidy
from sources import read_sources


@pytest.fixture(scope="module")
def sources(repository):
    return read_sources(repository)


def test_repository_has_no_forbidden_include(sources):
    assert [str(finding) for finding in arrows.check(sources)] == []


def test_repository_breaks_no_rule(sources, repository):
    build = pathlib.Path(os.environ.get("LARDER_BUILD", repository / "build" / "dev"))
    built = tidy.built_files(build / "compile_commands.json", repository)
    others = tidy.files_without_text(repository, sources)
    assert [str(finding) for finding in tidy.check(sources, built, others)] == []
