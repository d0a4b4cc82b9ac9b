"""The coroutine rule: what must not stand in one statement with co_await.

g++ 12 destroys an aggregate or capturing-lambda temporary of a co_await full-expression twice, and evaluates the
branches of ?: and && beside it wrongly. So a statement with co_await holds no brace-initialised argument, no capturing
lambda, no ?:, && or ||: name the value in a statement before, then std::move it. Works on blanked code (sources.blank).
"""

import re
from collections.abc import Iterator

_CONTROL = re.compile(r"\s*(?:(?:else\s+)?if(?:\s+constexpr)?|while|for|switch)\s*\(")
_LAMBDA_WITH_CAPTURE = re.compile(r"(?<![\w)\]])\[[^\[\]]+\]\s*(?=[({]|mutable)")
_FORBIDDEN = (
    (_LAMBDA_WITH_CAPTURE, "a capturing lambda"),
    (re.compile(r"\?"), "?:"),
    (re.compile(r"\s(?:&&|\|\|)\s"), "&& or ||"),
)


def _is_initialiser(code: str, at: int) -> bool:
    """Whether the { at this offset opens an initialiser; clang-format puts a space before every block's {."""
    before = code[:at]
    if before and (before[-1].isalnum() or before[-1] in "_>"):
        return True
    return bool(re.search(r"(?:[(,={\[]|\breturn|\bco_return)\s*$", before))


def _start(code: str, at: int) -> int:
    depth = 0
    for i in range(at - 1, -1, -1):
        c = code[i]
        if c in ")]":
            depth += 1
        elif c in "([":
            depth -= depth > 0
        elif c == "{":
            if depth > 0:
                depth -= 1
            elif not _is_initialiser(code, i):
                return i + 1
        elif c == "}":
            following = code[i + 1 :].lstrip()[:1]
            if depth > 0 or following in tuple(",).;]}"):
                depth += 1
            else:
                return i + 1
        elif c == ";" and depth == 0:
            return i + 1
    return 0


def _end(code: str, start: int) -> int:
    control = _CONTROL.match(code, start)
    depth = 0
    for i in range(start, len(code)):
        c = code[i]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth < 0 or (depth == 0 and control and i >= control.end()):
                return i
        elif c == ";" and depth == 0:
            return i
    return len(code)


def violations(code: str) -> Iterator[tuple[int, str]]:
    """(offset of the co_await, what is wrong) of every statement that breaks the rule."""
    seen = set()
    for match in re.finditer(r"\bco_await\b", code):
        start = _start(code, match.start())
        if start in seen:
            continue
        seen.add(start)
        statement = code[start : _end(code, start)]
        wrong = [name for pattern, name in _FORBIDDEN if pattern.search(statement)]
        without_lambdas = re.sub(r"[)\]]\s*(?:mutable\s*)?(?:noexcept\s*)?(?:->[^{]*)?\{", "", statement)
        if "{" in without_lambdas:
            wrong.append("a brace-initialised value")
        if wrong:
            yield match.start(), "co_await in one statement with " + ", ".join(wrong)
