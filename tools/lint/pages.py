"""Checks Markdown pages for tidy.py: the width of their lines, and that their links lead somewhere."""

import collections
import pathlib
import posixpath
import re
from collections.abc import Collection, Iterator

from sources import Source

WIDTH = 120
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
# A page that is named without a link, in a comment or a help text. A path within a URL does not count.
_NAMED = re.compile(r"(?<![\w/.@{}-])(?:[\w-]+/)*[\w-]+\.md\b")
# A source file that a page names. Capitals stand for any name (NAME.h).
_SOURCE = re.compile(r"`([a-z]+/[\w./-]+\.(?:h|cc|py|toml|yaml))`")


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _code_lines(text: str) -> Iterator[bool]:
    """True for each line of a code block: fenced, or indented by four after a blank line."""
    fenced = inside = False
    before = ""
    for line in text.splitlines():
        fence = line.lstrip().startswith("```")
        indented = line.startswith("    ") and (inside or not before.strip()) and not re.match(r" *(?:[-*+]|\d+\.) ", line)
        inside = indented or (inside and not line.strip())
        yield fenced or fence or indented
        fenced ^= fence
        before = line


def _prose(text: str) -> str:
    """The text with code blocks and code spans blanked; every line stays where it was."""
    lines = ["" if code else line for code, line in zip(_code_lines(text), text.splitlines(), strict=True)]
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", _blank, "\n".join(lines), flags=re.DOTALL)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    seen: collections.Counter[str] = collections.Counter()
    for code, line in zip(_code_lines(text), text.splitlines(), strict=True):
        heading = re.match(r"#{1,6}\s+(.+?)\s*#*$", line)
        if code or not heading:
            continue
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def wide_lines(source: Source) -> Iterator[tuple[int, str]]:
    """Lines wider than WIDTH, outside of code blocks. Output that is shown is as wide as it is."""
    for number, (code, line) in enumerate(zip(_code_lines(source.text), source.text.splitlines(), strict=True), 1):
        if not code and len(line) > WIDTH:
            yield number, f"{len(line)} columns, more than {WIDTH}: wrap it, or make a long row of a table a list"


def dead_links(sources: list[Source], others: Collection[str] = ()) -> Iterator[tuple[str, int, str]]:
    """(path, line, what is wrong) of each relative link or anchor that leads nowhere, and each named file that is missing.

    `others`: the paths of files without a text, such as pictures.
    """
    texts = {source.path: source.text for source in sources}
    known = {folder for path in texts for folder in map(str, pathlib.PurePosixPath(path).parents)} | set(texts) | set(others)
    pages = {source.path for source in sources if source.path.endswith(".md")}
    for source in sources:
        folder = posixpath.dirname(source.path)
        for match in _SOURCE.finditer(source.text if source.path in pages else ""):
            named = match[1]
            if named.split("/")[0] in known and named not in known and not re.search(r"[A-Z]{2}", named):
                yield source.path, source.line_of(match.start()), f"there is no file {named}"
        if source.path in pages:
            prose = _prose(source.text)
            for match in _LINK.finditer(prose):
                link = match[1] or match[2]
                if re.match(r"[a-z][a-z0-9+.-]*:", link):
                    continue
                place, _, anchor = link.partition("#")
                target = posixpath.normpath(posixpath.join(folder, place)) if place else source.path
                line = prose.count("\n", 0, match.start()) + 1
                if target not in known:
                    yield source.path, line, f"{link}: there is no {target}"
                elif anchor and target in pages and anchor not in anchors(texts[target]):
                    yield source.path, line, f"{link}: {target} has no heading with this anchor"
        named_in = _LINK.sub(_blank, source.text) if source.path in pages else source.text
        for match in _NAMED.finditer(named_in):
            if match[0] in known or any(page.endswith("/" + match[0]) for page in pages):
                continue
            if source.top == "tests" and "/" not in match[0]:
                continue  # a file that a test makes
            if posixpath.dirname(match[0]) not in known | {""}:
                continue  # of another repository
            if source.path in pages and posixpath.normpath(posixpath.join(folder, match[0])) in known:
                continue
            yield source.path, source.line_of(match.start()), f"there is no page {match[0]}"
