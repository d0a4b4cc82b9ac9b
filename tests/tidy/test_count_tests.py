"""tools/lint/count_tests.py names failed tests, and skipped tests with the reason.

With --no-skips a skipped test has failed, unless it lacks the real traces.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

CTEST = """<testsuite>
<testcase name="a_tests.1" classname="a_tests.1" status="run"/>
<testcase name="MicroBench" classname="MicroBench" status="run"/>
</testsuite>"""
PART = """<testsuites><testsuite name="A">
<testcase name="Passes" status="run" result="completed" classname="A"/>
<testcase name="Lacks" status="run" result="skipped" classname="A">
<skipped message="tests/a_test.cc:3&#x0A;no namespaces here: Operation not permitted&#x0A;"/></testcase>
</testsuite></testsuites>"""
PYTEST = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_passes[NAME]"/>
<testcase classname="tests.a" name="test_of_traces">
<skipped type="pytest.skip" message="the real traces are not beside this checkout">a.py:1</skipped></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def reports(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    paths = [tmp_path / "ctest.xml", tmp_path / "pytest.xml"]
    for path, text in zip(paths, (CTEST, PYTEST.replace("NAME", "longer than a file's name can be" * 99))):
        path.write_text(text)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/a_tests.1.xml").write_text(PART)
    return paths


def count(repository: pathlib.Path, tmp_path: pathlib.Path, *arguments: object) -> tuple[int, str]:
    command = [sys.executable, repository / "tools/lint/count_tests.py", "--parts", tmp_path / "parts", *arguments]
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert finished.stderr == ""
    assert (tmp_path / "counts").read_text() == finished.stdout.splitlines()[-1] + "\n"
    return finished.returncode, finished.stdout


def test_skipped_test_is_named_with_its_reason(
    repository: pathlib.Path, reports: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    status, output = count(repository, tmp_path, tmp_path / "counts", *reports)
    assert status == 0
    assert "skipped: A.Lacks: no namespaces here: Operation not permitted\n" in output
    assert output.endswith("3 passed, 0 failed, 2 skipped\n")


def test_no_skips_lets_only_the_traces_be_missing(
    repository: pathlib.Path, reports: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    status, output = count(repository, tmp_path, "--no-skips", tmp_path / "counts", *reports)
    assert status == 1
    assert "failed: A.Lacks: no namespaces here: Operation not permitted\n" in output
    assert output.endswith("3 passed, 1 failed, 1 skipped\n")
    status, output = count(repository, tmp_path, "--no-skips", tmp_path / "counts", reports[1])
    assert status == 0
    assert output.endswith("1 passed, 0 failed, 1 skipped\n")


def test_missing_report_is_a_failure(repository: pathlib.Path, reports: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    status, output = count(repository, tmp_path, tmp_path / "counts", *reports, tmp_path / "no.xml")
    assert status == 1
    assert "no: did not run\n" in output


def test_part_that_fails_after_its_tests_passed_counts_as_failed(
    repository: pathlib.Path, reports: list[pathlib.Path], tmp_path: pathlib.Path
) -> None:
    reports[0].write_text(CTEST.replace('status="run"/>', 'status="fail"><failure/></testcase>', 1))
    status, output = count(repository, tmp_path, tmp_path / "counts", reports[0])
    assert status == 1
    assert "failed: a_tests.1.a_tests.1\n" in output and output.endswith("2 passed, 1 failed, 1 skipped\n")
    (tmp_path / "parts/a_tests.1.xml").unlink()  # it crashed
    status, output = count(repository, tmp_path, tmp_path / "counts", reports[0])
    assert status == 1 and output.endswith("1 passed, 1 failed, 0 skipped\n")
