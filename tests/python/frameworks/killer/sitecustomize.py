"""Kills a process of an example with SIGKILL once it has printed as many steps as $LARDER_TEST_KILL_AFTER says. Python
imports this file by itself, in each process whose PYTHONPATH has this folder."""

import builtins
import os
import signal

left = int(os.environ.get("LARDER_TEST_KILL_AFTER", "0"))
print_line = builtins.print
printed: set[str] = set()


def print_and_die(*values: object, **options: object) -> None:
    global left
    print_line(*values, **options)
    line = str(values[:1])
    if " samples [" in line and line not in printed:  # Ray Train prints each line twice
        printed.add(line)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if left > 0:
    builtins.print = print_and_die
