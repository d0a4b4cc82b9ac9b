#!/usr/bin/python3
"""tidy.py [--compile-commands FILE] [ROOT]: checks the repository's own rules, which no compiler or formatter knows.

Each rule is one function below, named as it is printed, with its reason in its first line; tests/tidy shows each one
fire. Fails when there is a finding. With compile commands it also finds .cc files that no target builds.
"""

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Collection, Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import packages  # noqa: E402
import pages  # noqa: E402
from sources import PRODUCT, Finding, Source, read_sources, repository_files  # noqa: E402

# The lint and its tests spell out what they look for.
SELF = ("tools/lint/", "tests/tidy/")
# An example is a loader user's program, which has the loader's header and nothing else.
TIME_DOORS = ("base/clock.cc", "loader/examples/")
# Seams may wait: they stand between the code and the disk, the network, the clock or another process.
SLEEP_DOORS = ("base/clock.", "base/file_lock.", "cache/device/", "cache/remote/")

Rule = Iterator[tuple[int, str]]


def _matches(source: Source, pattern: str, says: str) -> Rule:
    for match in re.finditer(pattern, source.code):
        yield source.line_of(match.start()), says.format(match[0].strip())


# Rules on one C++ file.


def pragma_once(source: Source) -> Rule:
    """A header that is included twice must not be defined twice."""
    if source.is_header and not re.match(r"\s*#pragma once\n", source.code):
        yield 1, "a header begins with #pragma once"


def header_opening(source: Source) -> Rule:
    """A product's header opens with a paragraph that a newcomer can work from."""
    if source.is_header and source.top in PRODUCT and not re.match(r"#pragma once\n\n//", source.text):
        yield 1, "after #pragma once comes a paragraph on what this is, who owns it, from which threads"


def banned_call(source: Source) -> Rule:
    """Calls that overrun buffers, run a shell, or have state that is not ours."""
    names = r"(?:strcpy|strcat|sprintf|vsprintf|gets|tmpnam|mktemp|system|popen|rand|srand|strtok)"
    yield from _matches(source, rf"(?<![\w.>:])(?:std::|::)?{names}\s*\(", "{} is banned")


def library_randomness(source: Source) -> Rule:
    """std::shuffle and the distributions differ between library versions; draws must stay the same for ever."""
    if source.top in PRODUCT:
        pattern = r"std::(?:shuffle|sample|random_device|\w+_distribution|mt19937\w*|default_random_engine)\b"
        yield from _matches(source, pattern, "{} gives other values in other libraries; use base/hash.h's mix64")


def direct_clock(source: Source) -> Rule:
    """Time comes through base/clock.h, so that tests can move it."""
    if source.top in PRODUCT and not source.path.startswith(TIME_DOORS):
        pattern = r"\b(?:clock_gettime|gettimeofday|(?:std::|::)time|std::chrono::\w+_clock::now|\w+_clock::now)\s*\("
        yield from _matches(source, pattern, "{}...) bypasses base/clock.h")


def direct_sleep(source: Source) -> Rule:
    """Code that sleeps cannot be driven by a test's clock; only the seams wait."""
    if source.top in PRODUCT and not source.path.startswith(SLEEP_DOORS):
        pattern = (
            r"(?<![\w.>:])(?:::sleep\s*\(|sleep\s*\(\s*\d|(?:::)?(?:usleep|nanosleep|clock_nanosleep)\s*\("
            r"|(?:std::)?this_thread::sleep_(?:for|until)\s*\()"
        )
        yield from _matches(source, pattern, "{}...) outside the seams: wait on the Device or on an event")


def spdlog_in_one_place(source: Source) -> Rule:
    """spdlog stays behind base/server/logging.h."""
    for line, target, _ in source.includes:
        if target.startswith("spdlog") and not source.path.startswith("base/server/logging."):
            yield line, f"only base/server/logging.* includes <{target}>"
        if target.startswith("fmt/") and source.is_header:
            yield line, f"<{target}> in a header: it costs every file that includes it; format in the .cc"


def json_numbers(source: Source) -> Rule:
    """Boost writes 0 as 0E0; json_text() writes it as 0."""
    if source.top != "tests" and source.path != "base/server/json_text.cc":
        yield from _matches(source, r"json::serialize\s*\(", "{}...) writes 0 as 0E0; use json_text()")


def disabled_test(source: Source) -> Rule:
    """A test that does not run tells nothing."""
    if source.top == "tests":
        yield from _matches(source, r"\bDISABLED_\w+", "{} never runs; repair it or delete it")


# Rules on any text file.


def unfinished(source: Source) -> Rule:
    """Work to do is an issue, not a comment."""
    if not source.path.startswith(SELF):
        for match in re.finditer(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!XX)", source.text):
            yield source.line_of(match.start()), f"{match[0]}: finish it or write an issue"


def machine_path(source: Source) -> Rule:
    """The repository names no machine it was written on and no package index."""
    if source.path.startswith(SELF):
        return
    pattern = (
        r"(?<![\w.~$}{*/-])/(?:root|home/\w+|work/\w+|tmp/build-\w+)/"
        r"|\b(?:[\w-]+\.)*(?:pypi\.org|pythonhosted\.org|deb\.debian\.org|proxy\.golang\.org|npmjs\.org|crates\.io)\b"
    )
    for match in re.finditer(pattern, source.text):
        yield source.line_of(match.start()), f"{match[0]} exists on one machine only, or names a package index"


def wide_page(source: Source) -> Rule:
    """Pages are read beside code and in diffs, at the code's width."""
    if source.path.endswith(".md"):
        yield from pages.wide_lines(source)


CPP_RULES = (
    pragma_once,
    header_opening,
    banned_call,
    library_randomness,
    direct_clock,
    direct_sleep,
    spdlog_in_one_place,
    json_numbers,
    disabled_test,
)
TEXT_RULES = (unfinished, machine_path, wide_page)


# Rules on the repository as a whole.


def unlisted_test(sources: list[Source]) -> Iterator[Finding]:
    """A *_test.cc in a folder that no larder_test() names is never built."""
    listed = set()
    for source in sources:
        if source.top == "tests" and source.path.endswith("CMakeLists.txt"):
            listed |= {f"tests/{folder}" for folder in re.findall(r"larder_test\(\s*[\w-]+\s+([\w/.-]+)", source.text)}
    for source in sources:
        if source.path.endswith("_test.cc") and source.path.rsplit("/", 1)[0] not in listed:
            yield Finding(source.path, 1, "unlisted_test", "its folder is named by no larder_test() of tests/CMakeLists.txt")


def dead_header(sources: list[Source]) -> Iterator[Finding]:
    """A header no one includes is dead."""
    included = {target for source in sources if source.is_cpp for _, target, _ in source.includes}
    for source in sources:
        if source.is_header and source.path not in included:
            yield Finding(source.path, 1, "dead_header", "no file includes it")


def dead_source(sources: list[Source], built: set[str]) -> Iterator[Finding]:
    """A .cc file is dead if no target of this build builds it and its folder's CMakeLists.txt does not name it.

    Such a CMakeLists.txt is a build of its own: the Python module, the fuzz targets.
    """
    named: set[str] = set()
    for source in sources:
        if source.path.endswith("/CMakeLists.txt"):
            folder = source.path.rsplit("/", 1)[0]
            named |= {f"{folder}/{word.removesuffix('.cc')}.cc" for word in re.findall(r"[\w*./-]+", source.text)}
    for source in sources:
        path = pathlib.PurePath(source.path)
        if path.suffix == ".cc" and source.path not in built and not {source.path, f"{path.parent}/*.cc"} & named:
            yield Finding(source.path, 1, "dead_source", "no target builds it")


def dead_link(sources: list[Source], others: Collection[str] = ()) -> Iterator[Finding]:
    """A relative link, an anchor, or the name of a page in a comment or a help text must lead somewhere."""
    for path, line, says in pages.dead_links(sources, others):
        if not path.startswith(SELF):
            yield Finding(path, line, "dead_link", says)


def unlisted_package(sources: list[Source]) -> Iterator[Finding]:
    """A fresh machine has what tools/install-packages lists, and nothing else."""
    installed = {word for source in sources if source.path == packages.LIST for word in re.findall(r"[\w.+-]+", source.text)}
    for source in sources:
        for line, target, quoted in source.includes if source.is_cpp else ():
            if quoted or packages.is_everywhere(target):
                continue
            package = packages.package_of(target)
            if package is None:
                says = f"<{target}> comes from no package that tools/lint/packages.py knows"
                yield Finding(source.path, line, "unlisted_package", says)
            elif package not in installed:
                yield Finding(source.path, line, "unlisted_package", f"{packages.LIST} does not install {package}")


def built_files(compile_commands: pathlib.Path, root: pathlib.Path) -> set[str]:
    entries = json.loads(compile_commands.read_text(encoding="utf-8"))
    files = [pathlib.Path(entry["directory"], entry["file"]).resolve() for entry in entries]
    for unit in [file for file in files if file.parent.name == "Unity"]:
        included = re.findall(r'^#include "(.+)"$', unit.read_text(encoding="utf-8"), re.MULTILINE)
        files += [pathlib.Path(name).resolve() for name in included]
    return {str(file.relative_to(root.resolve())) for file in files if file.is_relative_to(root.resolve())}


def check(sources: list[Source], built: set[str] | None = None, others: Collection[str] = ()) -> list[Finding]:
    """`others`: the paths of files without a text, such as pictures."""
    findings = []
    for source in sources:
        for rule in (CPP_RULES if source.is_cpp else ()) + TEXT_RULES:
            findings += [Finding(source.path, line, rule.__name__, text) for line, text in rule(source)]
    findings += unlisted_test(sources)
    findings += dead_header(sources)
    findings += dead_link(sources, others)
    findings += unlisted_package(sources)
    if built is not None:
        findings += dead_source(sources, built)
    return sorted(findings, key=lambda finding: (finding.path, finding.line))


def files_without_text(root: pathlib.Path, sources: list[Source]) -> set[str]:
    return set(repository_files(root)) - {source.path for source in sources}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--compile-commands", type=pathlib.Path)
    arguments = parser.parse_args()
    sources = read_sources(arguments.root)
    built = built_files(arguments.compile_commands, arguments.root) if arguments.compile_commands else None
    findings = check(sources, built, files_without_text(arguments.root, sources))
    for finding in findings:
        print(finding)
    print(f"tidy: {len(sources)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
