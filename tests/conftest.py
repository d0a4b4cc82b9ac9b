"""What every Python test shares: where the programs under test are.

`tools/test` runs these tests with the interpreter of build/venv, in which the Python package is installed, and sets
LARDER_BUILD to the build directory of its preset (so that the sanitized daemon is driven by the same tests). Run by
hand, the tests use build/dev: `build/venv/bin/python -m pytest tests/python -k name`.
"""

import os
import pathlib
import shutil
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def larder_bin() -> pathlib.Path:
    """The folder of the built programs: larder, larderd."""
    folder = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build" / "dev")) / "bin"
    if not (folder / "larderd").exists():
        pytest.fail(f"{folder}/larderd is not built; run tools/test, or cmake --preset dev && cmake --build --preset dev")
    return folder


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    report = (yield).get_result()
    item.stash[PASSED] = item.stash.get(PASSED, True) and report.outcome != "failed"


@pytest.fixture(autouse=True)
def removed_when_passed(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[None]:
    """The directory of a test that failed stays; the others go at once, not all together at the end."""
    yield
    if request.node.stash.get(PASSED, False):
        shutil.rmtree(tmp_path)


# A file's tests run in one process, which is given two files at the start and another when one is left. Those that take
# longest come first, or the last of them would run alone, and then those that go well with them.
FIRST = (
    "test_bench.py",
    "test_remotes.py",
    "test_bench_cluster.py",
    "test_bench_events.py",
    "test_ideal_rate.py",
    "test_ideal_rate_workers.py",
    "test_formats.py",
    "test_views.py",
    "test_bench_interrupted.py",
    "test_servers.py",
    "test_s3_access.py",
    "test_resumed_indexing.py",
    "test_quickstart.py",
    "test_packing.py",
    "test_walk_tutorial.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gone = [name for name in FIRST if not list((ROOT / "tests").rglob(name))]
    assert not gone, f"FIRST in {__file__} names files that do not exist: {gone}"
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(FIRST)))
