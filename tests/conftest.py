"""Gives every Python test the paths of the programs under test.

`tools/test` runs these tests with the interpreter of build/venv, in which the Python package is installed, and sets
LARDER_BUILD to the build directory of its preset (so that the sanitized daemon is driven by the same tests). Run by
hand, the tests use build/dev: `build/venv/bin/python -m pytest tests/python -k name`.
"""

import os
import pathlib
import re
import shutil
from collections.abc import Iterator

import pytest
from build_options import sanitizer

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LARDER_BUILD", ROOT / "build" / "dev"))


@pytest.fixture(scope="session")
def repository() -> pathlib.Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def larder_bin() -> pathlib.Path:
    """The folder of the built programs: larder, larderd."""
    folder = BUILD / "bin"
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
    """Removes the directory of a test that passed at once. The directory of a failed test stays."""
    yield
    if request.node.stash.get(PASSED, False):
        shutil.rmtree(tmp_path)


# A file's tests run in one process; those of test_engine_cases.py in one for each engine. Each process gets two such
# groups at the start, and another one when only one is left. The groups that take longest come first, so that none of
# them runs alone at the end. Files that run well beside them follow.
FIRST = (
    "test_engine_cases.py",
    "test_bench.py",
    "test_remotes.py",
    "test_kubernetes.py",
    "test_kubernetes_place.py",
    "test_bench_cluster.py",
    "test_bench_events.py",
    "test_clean_root.py",
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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    from xdist.scheduler import LoadFileScheduling

    class LoadFileAndEngineScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            engine = re.search(r"test_engine_cases\.py::.*\[(local|agent|slurm|kubernetes)\b", nodeid)
            return super()._split_scope(nodeid) + (f" on {engine[1]}" if engine else "")

    return LoadFileAndEngineScheduling(config, log)


def has_nothing_to_show(item: pytest.Item) -> bool:
    """True for a test that a build with a sanitizer cannot add to: it runs no program of the build; or decision code
    alone, which unit tests run under the sanitizers, too; or it preloads a library, which such a program refuses because
    its sanitizer's runtime must come first; or it drives others' programs beside those of the build."""
    marked = any(item.get_closest_marker(name) for name in ("preloads", "decisions", "control_plane"))
    return marked or "larder_bin" not in getattr(item, "fixturenames", ())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (BUILD / "CMakeCache.txt").exists() and sanitizer(BUILD):
        left_out = [item for item in items if has_nothing_to_show(item)]
        items[:] = [item for item in items if not has_nothing_to_show(item)]
        config.hook.pytest_deselected(items=left_out)
    missing = [name for name in FIRST if not list((ROOT / "tests").rglob(name))]
    assert not missing, f"FIRST in {__file__} names files that do not exist: {missing}"
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.name, len(FIRST)))
