#!/usr/bin/python3
"""end_to_end.py ENGINE: runs two tenants' jobs on eight nodes, behind a remote of limited bandwidth, with real daemons
and real readers; one node is lost on the way. ENGINE runs the jobs: processes (of an agent, without a cluster manager),
slurm (a real Slurm), or kubernetes (a real API server with fake nodes: readers run beside the pods).

Prints each job's rate by the plan and as read, its completion time and that of `larder simulate`, and what
`larder job why` said it waited for, which was compared with the queue. --json prints one object. Needs root."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "python")]

from end_to_end import SETTING, Run, report, show  # noqa: E402
from end_to_end_engines import ENGINES  # noqa: E402
from end_to_end_site import Failure, on_own_site  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=tuple(ENGINES))
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build" / "dev" / "bin")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    try:
        with on_own_site(SETTING, arguments.programs) as (site, stack):
            engine = ENGINES[arguments.engine](site)
            stack.callback(engine.stop)
            run = Run(site, engine)
            try:
                run.go()
                result = report(run)
            except Failure as failure:
                raise Failure(f"{failure}\n{engine.logs()}") from failure
    except Failure as failure:
        print(f"end_to_end.py: {failure}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
