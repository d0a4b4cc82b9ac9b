#!/usr/bin/python3
"""count_tests.py COUNTS REPORT.xml...: adds up JUnit reports of ctest and pytest.

Prints a line per report, names what was skipped and what failed, and ends with "N passed, M failed, K skipped", which
it also writes to the file COUNTS. Fails when a report is missing or something failed.
"""

import pathlib
import sys
import xml.etree.ElementTree


def read(path: pathlib.Path) -> tuple[int, list[str], list[str]]:
    """The number of tests that passed, and the names of those that failed and were skipped."""
    passed, failed, skipped = 0, [], []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        tags = {child.tag for child in case}
        if tags & {"failure", "error"}:
            failed.append(name)
        elif "skipped" in tags or case.get("status") in ("disabled", "notrun"):
            skipped.append(name)
        else:
            passed += 1
    return passed, failed, skipped


def main(counts: str, reports: list[str]) -> int:
    passed, failed, skipped = 0, 0, 0
    for report in map(pathlib.Path, reports):
        if not report.exists():
            print(f"{report.stem}: did not run")
            failed += 1
            continue
        report_passed, report_failed, report_skipped = read(report)
        print(f"{report.stem:16} {report_passed:8} passed, {len(report_failed)} failed, {len(report_skipped)} skipped")
        for name in report_failed:
            print(f"  failed: {name}")
        for name in report_skipped:
            print(f"  skipped: {name}")
        passed += report_passed
        failed += len(report_failed)
        skipped += len(report_skipped)
    line = f"{passed} passed, {failed} failed, {skipped} skipped"
    pathlib.Path(counts).write_text(line + "\n", encoding="utf-8")
    print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
