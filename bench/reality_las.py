#!/usr/bin/python3
"""reality_las.py: does the simulator predict queueing and preemption? Runs eight jobs that want 21 GPUs of four
nodes, which have eight, with real daemons and real readers, under the policy las. Short jobs that come later stop long
ones, which go on from where they were.

Prints each job's completion time and how often it was preempted, beside the figures of `larder simulate`. --json prints
one object. Needs root."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "python")]

from end_to_end_engines import Processes  # noqa: E402
from end_to_end_las import SETTING, Run, report, show  # noqa: E402
from end_to_end_site import Failure, on_own_site  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build" / "dev" / "bin")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    try:
        with on_own_site(SETTING, arguments.programs) as (site, stack):
            engine = Processes(site)
            stack.callback(engine.stop)
            run = Run(site, engine)
            try:
                run.go()
                result = report(run)
            except Failure as failure:
                raise Failure(f"{failure}\n{engine.logs()}") from failure
    except Failure as failure:
        print(f"reality_las.py: {failure}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
