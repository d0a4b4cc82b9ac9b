"""The files that a lint checks, and C++ text without comments and literals. For arrows.py, tidy.py, clang_tidy.py."""

import dataclasses
import functools
import pathlib
import re
import subprocess

CPP_SUFFIXES = {".cc", ".h"}
# Folders whose code ends up in a product; tools, bench and tests are programs and may do more.
PRODUCT = ("base", "cache", "loader", "allocator", "scheduler")


@dataclasses.dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.rule}] {self.text}"


@dataclasses.dataclass(frozen=True)
class Source:
    path: str  # from the repository's root
    text: str

    @property
    def top(self) -> str:
        return self.path.split("/", 1)[0]

    @property
    def is_cpp(self) -> bool:
        return pathlib.PurePath(self.path).suffix in CPP_SUFFIXES

    @property
    def is_header(self) -> bool:
        return self.path.endswith(".h")

    @functools.cached_property
    def code(self) -> str:
        """The text with comments and the insides of literals blanked; every line and column stays where it was."""
        return blank(self.text)

    @functools.cached_property
    def includes(self) -> list[tuple[int, str, bool]]:
        """(line, path, quoted) of each #include."""
        found = []
        for number, line in enumerate(self.text.splitlines(), 1):
            match = re.match(r'\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', line)
            if match:
                found.append((number, match[1] or match[2], match[1] is not None))
        return found

    def line_of(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


_LITERAL = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'
      """,
    re.VERBOSE | re.DOTALL,
)


def blank(text: str) -> str:
    def spaces(match: re.Match[str]) -> str:
        whole = match[0]
        keep = whole[0] if whole[0] in "\"'" else " "
        inside = re.sub(r"[^\n]", " ", whole[1:-1])
        return keep + inside + (keep if len(whole) > 1 else "")

    return _LITERAL.sub(spaces, text)


def repository_files(root: pathlib.Path) -> list[str]:
    """Every file git tracks or would track; without git, every file outside build/."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0 and (root / ".git").exists():
        names = listing.stdout.decode().split("\0")
    else:
        names = [
            str(path.relative_to(root))
            for path in root.rglob("*")
            if not {"build", ".git", "__pycache__", ".pytest_cache"} & set(path.relative_to(root).parts)
        ]
    return sorted({name for name in names if name and (root / name).is_file()})


def read_sources(root: pathlib.Path) -> list[Source]:
    """The repository's text files."""
    sources = []
    for name in repository_files(root):
        data = (root / name).read_bytes()
        if b"\0" not in data[:4096]:
            sources.append(Source(name, data.decode("utf-8", errors="replace")))
    return sources
