#!/usr/bin/python3
"""arrows.py [ROOT]: checks which folders include which.

Checks every #include of project files against the arrows of ARCHITECTURE.md. The compiler cannot, because include paths
start at the repository's root. Also checks that the subfolders of a part (cache/store, cache/shard, ...) form no cycle;
cache/device.h counts as part of cache/device. Prints one line per forbidden include and fails if there is one.
"""

import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from sources import CPP_SUFFIXES, Finding, Source, read_sources  # noqa: E402

PROGRAMS = {"tools", "bench", "tests"}
# Program -> programs it must not include. Benches print with tools/cli, so tools must not need benches.
FORBIDDEN_PROGRAMS = {"tools": {"bench", "tests"}}
# Part -> parts it may include, besides itself. The longest matching folder is a file's part.
ALLOWED = {
    "base": set(),
    "base/server": {"base"},
    "cache/protocol": {"base"},
    "cache": {"cache/protocol", "allocator/protocol", "base", "base/server"},
    "loader": {"cache/protocol", "base"},
    "allocator/protocol": {"base", "base/server"},
    "allocator": {"allocator/protocol", "base", "base/server"},
    "scheduler": {"allocator", "allocator/protocol", "base", "base/server"},
}
# A training job links the LIGHT parts, so they must not include HEAVY headers.
LIGHT = {"base", "cache/protocol", "loader"}
HEAVY = re.compile(r"^(boost|spdlog|fmt|prometheus|toml\+\+|CLI|liburing|lmdb)[/.]")


def part_of(path: str) -> str | None:
    folders = path.split("/")[:-1]
    for length in range(len(folders), 0, -1):
        folder = "/".join(folders[:length])
        if folder in ALLOWED or folder in PROGRAMS:
            return folder
    return None


def forbidden(source: Source, known: set[str]) -> list[Finding]:
    part = part_of(source.path)
    if part is None:
        return []
    findings = []
    for line, target, quoted in source.includes:
        target_part = part_of(target)
        if quoted and target not in known:
            findings.append(Finding(source.path, line, "arrows", f'"{target}" is not a path from the repository\'s root'))
        elif not quoted and target in known:
            findings.append(Finding(source.path, line, "arrows", f'<{target}> is a project file: write it in quotes'))
        elif part in LIGHT and not quoted and HEAVY.match(target):
            findings.append(Finding(source.path, line, "arrows", f"{part} must not include <{target}>: training jobs link it"))
        elif target in known and target_part in FORBIDDEN_PROGRAMS.get(part, ()):
            findings.append(Finding(source.path, line, "arrows", f'{part} must not include "{target}"'))
        elif part not in PROGRAMS and target in known and target_part != part and target_part not in ALLOWED[part]:
            may = ", ".join(sorted(ALLOWED[part])) or "nothing else"
            findings.append(Finding(source.path, line, "arrows", f'{part} must not include "{target}"; it may include {may}'))
    return findings


def subfolder(path: str) -> tuple[str, str] | None:
    """(top folder, subfolder) of a product's file; cache/device.h and cache/device/ring_device.h are both ("cache", "device")."""
    folders = path.split("/")
    if folders[0] in PROGRAMS or len(folders) < 2:
        return None
    return folders[0], folders[1].removesuffix(".h").removesuffix(".cc")


def cycles(sources: list[Source], known: set[str]) -> list[Finding]:
    # Only folders take part: base/error.h is a file of base, not a part of it.
    parts = {subfolder(path) for path in known if path.count("/") >= 2} - {None}
    edges: dict[tuple[str, str], dict[tuple[str, str], tuple[str, int]]] = collections.defaultdict(dict)
    for source in sources:
        start = subfolder(source.path)
        for line, target, _ in source.includes:
            end = subfolder(target)
            if target in known and start in parts and end in parts and start[0] == end[0] and start != end:
                edges[start].setdefault(end, (source.path, line))

    findings, done = [], set()

    def visit(node: tuple[str, str], path: list[tuple[str, str]]) -> None:
        if node in path:
            loop = path[path.index(node) :] + [node]
            where, line = edges[loop[-2]][loop[-1]]
            names = " -> ".join("/".join(part) for part in loop)
            findings.append(Finding(where, line, "arrows", f"include cycle {names}"))
            return
        if node in done:
            return
        for end in sorted(edges.get(node, {})):
            visit(end, path + [node])
        done.add(node)

    for node in sorted(edges):
        visit(node, [])
    return findings


def check(sources: list[Source]) -> list[Finding]:
    cpp = [source for source in sources if pathlib.PurePath(source.path).suffix in CPP_SUFFIXES]
    known = {source.path for source in cpp}
    return [finding for source in cpp for finding in forbidden(source, known)] + cycles(cpp, known)


def main(arguments: list[str]) -> int:
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parents[2]
    sources = read_sources(root)
    findings = check(sources)
    for finding in findings:
        print(finding)
    print(f"arrows: {sum(len(source.includes) for source in sources if source.is_cpp)} includes, {len(findings)} forbidden")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
