#!/usr/bin/python3
"""end_to_end.py ENGINE: runs two tenants' jobs on eight nodes, behind a remote of limited bandwidth, with real daemons
and real readers; one node is lost on the way. ENGINE runs the jobs: processes (of an agent, without a cluster manager),
slurm (a real Slurm), or kubernetes (a real API server with fake nodes: readers run beside the pods).

Prints each job's rate by the plan and as read, its completion time and that of `larder simulate`, and what
`larder job why` said it waited for, which was compared with the queue. --json prints one object. Needs root."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "python")]

from end_to_end import Failure, Run, Site, report, show  # noqa: E402
from end_to_end_engines import ENGINES  # noqa: E402
from machines import in_own_network, run as run_command  # noqa: E402

PRIORITY = -10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=tuple(ENGINES))
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "build" / "dev" / "bin")
    parser.add_argument("--json", action="store_true", help="print one object")
    arguments = parser.parse_args()
    in_own_network()
    # Other work of this machine must not take the nodes' processors.
    os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    with tempfile.TemporaryDirectory(prefix="larder-", dir="/tmp") as work, contextlib.ExitStack() as stack:
        # The disk of this machine may be busy with other things, too.
        run_command("mount", "-t", "tmpfs", "none", work)
        stack.callback(run_command, "umount", "--lazy", work)
        site = Site(arguments.programs, pathlib.Path(work), stack)
        engine = ENGINES[arguments.engine](site)
        stack.callback(engine.stop)
        run = Run(site, engine)
        try:
            run.go()
            result = report(run)
        except Failure as failure:
            allocator_log = site.allocator.log.read_text()[-3000:]
            print(f"end_to_end.py: {failure}", engine.logs(), allocator_log, sep="\n", file=sys.stderr)
            return 1
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
