"""The programs that came with this wheel: larder, larderd and what they start."""

import os
import sys


def run() -> None:
    """Becomes the program that this process is named after."""
    name = os.path.basename(sys.argv[0])
    os.execv(os.path.join(os.path.dirname(__file__), "bin", name), [name, *sys.argv[1:]])
