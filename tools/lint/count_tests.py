#!/usr/bin/python3
"""count_tests.py [--no-skips] [--parts DIRECTORY] COUNTS REPORT.xml...: adds up JUnit reports of ctest and pytest.

Prints a line per report, names what failed and what was skipped, with its reason, and ends with "N passed, M failed, K
skipped", which it also writes to the file COUNTS. Fails when a report is missing or something failed. With --no-skips a
skipped test counts as failed, unless it lacks only the data that a checkout does not have (MAY_BE_MISSING). If
DIRECTORY has a report NAME.xml, the case NAME of another report is a run of many tests: those tests are counted.
"""

import argparse
import pathlib
import sys
import xml.etree.ElementTree

# The real traces lie beside a checkout, not in it.
MAY_BE_MISSING = "the real traces are not beside this checkout"


def reason(case: xml.etree.ElementTree.Element) -> str:
    """Why a test was skipped: pytest's message, or GoogleTest's, below a line that tells where."""
    skipped = case.find("skipped")
    lines = ("" if skipped is None else skipped.get("message", "")).strip().splitlines()
    return lines[-1].strip() if lines else ""


def read(path: pathlib.Path, parts: dict[str, pathlib.Path]) -> tuple[int, list[str], list[str]]:
    """The number of tests that passed, the names of those that failed, and those that were skipped with their reasons."""
    passed, failed, skipped = 0, [], []
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}"
        tags = {child.tag for child in case}
        if part := parts.get(case.get("name", "")):
            part_passed, part_failed, part_skipped = read(part, {})
            if tags & {"failure", "error"} and not part_failed:  # all its tests passed, but it did not end well
                part_failed = [name]
            passed += part_passed
            failed += part_failed
            skipped += part_skipped
        elif tags & {"failure", "error"}:
            failed.append(name)
        elif "skipped" in tags or case.get("status") in ("disabled", "notrun"):
            skipped.append(f"{name}: {reason(case)}")
        else:
            passed += 1
    return passed, failed, skipped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-skips", action="store_true")
    parser.add_argument("--parts", type=pathlib.Path)
    parser.add_argument("counts", type=pathlib.Path)
    parser.add_argument("reports", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    parts = {part.stem: part for part in arguments.parts.glob("*.xml")} if arguments.parts else {}
    passed, failed, skipped = 0, 0, 0
    for report in arguments.reports:
        if not report.exists():
            print(f"{report.stem}: did not run")
            failed += 1
            continue
        report_passed, report_failed, report_skipped = read(report, parts)
        if arguments.no_skips:
            report_failed += [name for name in report_skipped if not name.endswith(MAY_BE_MISSING)]
            report_skipped = [name for name in report_skipped if name.endswith(MAY_BE_MISSING)]
        print(f"{report.stem:16} {report_passed:8} passed, {len(report_failed)} failed, {len(report_skipped)} skipped")
        for name in report_failed:
            print(f"  failed: {name}")
        for name in report_skipped:
            print(f"  skipped: {name}")
        passed += report_passed
        failed += len(report_failed)
        skipped += len(report_skipped)
    line = f"{passed} passed, {failed} failed, {skipped} skipped"
    arguments.counts.write_text(line + "\n", encoding="utf-8")
    print(line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
