"""tools/lint/coroutine.py knows a co_await statement's edges, and what must not stand inside them."""

import coroutine
import pytest
from sources import blank

GOOD = [
    "auto r = co_await read(socket, buffer);",
    "auto&& r = co_await read(socket, buffer);",
    "Options options{1, 2};\nauto r = co_await call(std::move(options));",
    "if (co_await ready()) {\n    run(Options{1});\n}",
    "if (a && b) {\n    co_await f();\n}",
    "auto f = [this] { return x ? 1 : 2; };\nco_await call(f);",
    "co_await f();\nauto x = a ? b : c;",
    "Task<int> f() {\n    co_return co_await g(values[i]);\n}",
    "awaitable<void> run(Options options) {\n    for (;;) co_await step();\n}",
    'co_await log("a && b ? {}");',
    "switch (kind) {\n    case 1: co_await f(); break;\n}",
    "struct A {\n    Task<> f() { co_await g(); }\n};",
    "while (x) {\n    co_await f();\n}\nauto y = Point{1, 2};",
]
BAD = [
    ("co_await call(Options{1, 2});", "brace-initialised"),
    ("co_await call({1, 2});", "brace-initialised"),
    ("auto r = co_await call(name, {});", "brace-initialised"),
    ("auto r = Wrapper{co_await call()};", "brace-initialised"),
    ("co_await post([this] { run(); });", "capturing lambda"),
    ("co_await post(executor, [&, x](int a) { run(a); });", "capturing lambda"),
    ("auto r = flag ? co_await f() : 0;", "?:"),
    ("if (flag && co_await f()) run();", "&& or ||"),
    ("while (co_await f() || g()) {\n}", "&& or ||"),
    ("void f() {\n    if (x) {\n        return;\n    }\n    co_await g(T{1});\n}", "brace-initialised"),
]


@pytest.mark.parametrize("code", GOOD)
def test_good_statements_pass(code):
    assert list(coroutine.violations(blank(code))) == []


@pytest.mark.parametrize(("code", "what"), BAD)
def test_bad_statements_are_named(code, what):
    [(offset, text)] = coroutine.violations(blank(code))
    assert what in text
    assert code[offset:].startswith("co_await")
