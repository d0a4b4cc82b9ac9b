#!/usr/bin/python3
"""clang_tidy.py BUILD [--seconds N] [--jobs N]: runs clang-tidy-19 over product sources; remembers clean results.

Reads BUILD/compile_commands.json. It is of a g++ build, so clang's own compiler warnings are off. Sources that are
compiled together are checked together, which takes a fourth of the time. A unit is checked again only when one of its
files, a project header they include, .clang-tidy or its command has changed: clean results are kept by a hash of all
of these in build/clang-tidy. Tests are left to the compiler and the sanitizers. With --seconds it stops in time,
names the files that it did not reach, and checks those the next time. Units never seen clean go first, those with the
latest commits before the others.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLEAN = ROOT / "build" / "clang-tidy"
TOOL = "clang-tidy-19"
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
NOT_CHECKED = ("tests", "build")


def collect_with_headers(path: pathlib.Path, seen: dict[pathlib.Path, bytes]) -> None:
    """Collects the file and all project headers it includes."""
    if path in seen or not path.is_file():
        return
    seen[path] = path.read_bytes()
    for name in INCLUDE.findall(seen[path]):
        collect_with_headers(ROOT / name.decode(), seen)


def sources_of(path: pathlib.Path) -> list[pathlib.Path]:
    """The sources of a unit: the file itself, or, for a unity file made by CMake, the files that it includes."""
    if path.parent.name != "Unity":
        return [path]
    return [pathlib.Path(name.decode()) for name in INCLUDE.findall(path.read_bytes())]


def is_checked(path: pathlib.Path) -> bool:
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in NOT_CHECKED


def names_of(unit: str) -> str:
    return " ".join(str(path.relative_to(ROOT)) for path in sources_of(pathlib.Path(unit)))


def key_of(entry: dict, config: bytes) -> str:
    seen: dict[pathlib.Path, bytes] = {}
    collect_with_headers(pathlib.Path(entry["file"]), seen)
    digest = hashlib.sha256(config + entry["command"].encode())
    for path in sorted(seen):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + seen[path])
    return digest.hexdigest()


def last_commits() -> dict[pathlib.Path, int]:
    """The time of each file's last commit, of the files that changed in the last commits."""
    log = ["git", "log", "--max-count=300", "--format=@%ct", "--name-only"]
    times: dict[pathlib.Path, int] = {}
    time_s = 0
    for line in subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if line.startswith("@"):
            time_s = int(line[1:])
        elif line:
            times.setdefault(ROOT / line, time_s)
    return times


def run(build: pathlib.Path, path: str) -> str:
    """Returns what clang-tidy found; empty if the unit is clean."""
    command = [TOOL, "-p", str(build), "--quiet", "--extra-arg=-Wno-everything", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return done.stdout or done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()

    entries = json.loads((arguments.build / "compile_commands.json").read_text(encoding="utf-8"))
    config = (ROOT / ".clang-tidy").read_bytes()
    CLEAN.mkdir(parents=True, exist_ok=True)
    key_by_unit = {}  # a file that two targets build is checked once
    for entry in entries:
        path = pathlib.Path(entry["file"])
        if all(is_checked(source) for source in sources_of(path)):
            key_by_unit.setdefault(str(path), key_of(entry, config))
    to_check = {path: key for path, key in key_by_unit.items() if not (CLEAN / key).exists()}
    changed = last_commits()

    def rank(path: str) -> tuple[bool, int]:
        # Each clean unit also leaves its name, so that units never seen clean come first.
        seen_clean = (CLEAN / hashlib.sha256(path.encode()).hexdigest()).exists()
        return seen_clean, -max(changed.get(source, 0) for source in sources_of(pathlib.Path(path)))

    order = sorted(to_check, key=rank)

    deadline = time.monotonic() + arguments.seconds
    dirty, late = [], []

    def check(path: str) -> None:
        if time.monotonic() > deadline:
            late.append(path)
            return
        found = run(arguments.build, path)
        if found:
            dirty.append(path)
            print(found, flush=True)
            return
        (CLEAN / to_check[path]).touch()
        (CLEAN / hashlib.sha256(path.encode()).hexdigest()).touch()

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(check, order))
    for path in sorted(late):
        print(f"not checked within the time: {names_of(path)}")
    clean = len(key_by_unit) - len(dirty) - len(late)
    units = f"{clean} of {len(key_by_unit)} units clean"
    print(f"clang-tidy: {units}, {len(dirty)} with findings, {len(late)} left for next time")
    return 1 if dirty else 0


if __name__ == "__main__":
    sys.exit(main())
