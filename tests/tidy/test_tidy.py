"""Every rule of tools/lint/tidy.py fires on the text it forbids, and not on similar text that is allowed."""

import pytest
import tidy

HEADER = "#pragma once\n\n// What this is.\n"

# (rule, file, text that breaks it, text that does not)
CASES = [
    ("pragma_once", "base/x.h", "int f();\n", HEADER),
    ("header_opening", "cache/x.h", "#pragma once\n\n#include <vector>\n", HEADER),
    ("banned_call", "base/x.cc", "void f(char* a) { strcpy(a, b); }", "// strcpy(a, b)\nlog(\"strcpy(a)\");"),
    ("banned_call", "tools/x.cc", "int f() { return std::system(\"ls\"); }", "throw std::system_error(code);"),
    ("banned_call", "tests/x.cc", "int f() { return std::rand(); }", "int operand(int);"),
    ("json_numbers", "tools/x.cc", "print(json::serialize(value));", "print(json_text(value));"),
    ("json_numbers", "bench/x.cc", "auto text = boost::json::serialize(value);", "// json::serialize(value) writes 0E0"),
    ("banned_call", "base/x.cc", "sprintf(buffer, \"x\");", "std::snprintf(buffer, sizeof buffer, \"x\");"),
    ("library_randomness", "loader/x.cc", "std::shuffle(a, b, c);", "permute(a);"),
    ("library_randomness", "loader/x.cc", "std::uniform_int_distribution<int> d;", "// std::uniform_int_distribution\n"),
    ("direct_clock", "cache/x.cc", "auto t = std::chrono::steady_clock::now();", "auto t = clock.now_ns();"),
    ("direct_clock", "loader/x.cc", "::clock_gettime(CLOCK_MONOTONIC, &t);", "timespec t{};"),
    ("direct_sleep", "cache/shard/x.cc", "std::this_thread::sleep_for(1ms);", "device.wait(deadline_ns);"),
    ("direct_sleep", "loader/x.cc", "usleep(10);", "daemon_sleeping.exchange(0);"),
    ("direct_sleep", "cache/store/x.cc", "::sleep(1);", "void Index::sleep(int ms) {}\nvoid f() { sleep(ms_max); }"),
    ("spdlog_in_one_place", "cache/x.cc", "#include <spdlog/spdlog.h>\n", "#include \"base/server/logging.h\"\n"),
    ("spdlog_in_one_place", "cache/x.h", HEADER + "#include <fmt/format.h>\n", HEADER),
    ("disabled_test", "tests/x_test.cc", "TEST(A, DISABLED_b) {}", "TEST(A, b) {}"),
    ("unfinished", "base/x.cc", "// " + "TO" + "DO: more\n", "char path[] = \"/tmp/larder-XXXXXX\";\n"),
    ("unfinished", "README.md", "FIX" + "ME\n", "fixme is a word\n"),
    ("machine_path", "tools/x", "cd /ro" + "ot/project\n", "cd /rooted/project ~/.local/share\n"),
    ("wide_page", "docs/x.md", "word " * 25 + "\n", "word " * 24 + "\n\n    " + "code " * 30 + "\n"),
    ("wide_page", "docs/x.md", "word " * 25 + "\n", "```\n" + "x" * 130 + "\n```\n"),
    ("wide_page", "docs/x.md", "| " + "cell " * 25 + "|\n", "| " + "cell " * 20 + "|\n"),
    ("machine_path", "tools/x.py", "index = 'https://py" + "pi.org/simple'\n", "pip install webdataset\n"),
]


def rules_that_fire(sources) -> set[str]:
    return {finding.rule for finding in tidy.check(sources)} - {"dead_header", "unlisted_test", "unlisted_package"}


@pytest.mark.parametrize(("rule", "path", "bad", "good"), CASES)
def test_rule_fires_on_bad_text_and_not_on_good_text(make_sources, rule, path, bad, good):
    assert rule in rules_that_fire(make_sources({path: bad}))
    assert rules_that_fire(make_sources({path: good})) == set()


def test_every_file_rule_has_a_case():
    assert {rule.__name__ for rule in tidy.CPP_RULES + tidy.TEXT_RULES} == {case[0] for case in CASES}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("base/clock.cc", "clock_gettime(CLOCK_MONOTONIC, &now);"),
        ("cache/device/thread_device.cc", "std::this_thread::sleep_for(1ms);"),
        ("bench/x.cc", "auto t = std::chrono::steady_clock::now();"),
        ("tests/x_test.cc", "std::this_thread::sleep_for(1ms); std::shuffle(a, b, c);"),
        ("base/server/logging.cc", "#include <spdlog/spdlog.h>\n"),
    ],
)
def test_files_exempt_from_a_ban_pass(make_sources, path, text):
    assert rules_that_fire(make_sources({path: text})) == set()


def test_findings_name_the_line(make_sources):
    [finding] = tidy.check(make_sources({"base/x.cc": "int a;\n/* two\nlines */ int b;\nint c = rand();\n"}))
    assert (finding.path, finding.line, finding.rule) == ("base/x.cc", 4, "banned_call")


def test_test_in_unlisted_folder_is_found(make_sources):
    files = {
        "tests/CMakeLists.txt": "larder_test(base_tests unit/base larder_base)\n",
        "tests/unit/base/a_test.cc": "",
        "tests/unit/lost/b_test.cc": "",
    }
    [finding] = tidy.check(make_sources(files))
    assert (finding.rule, finding.path) == ("unlisted_test", "tests/unit/lost/b_test.cc")


def test_header_that_nothing_includes_is_found(make_sources):
    files = {"base/a.h": HEADER, "base/b.h": HEADER, "base/a.cc": '#include "base/a.h"\n'}
    [finding] = tidy.check(make_sources(files))
    assert (finding.rule, finding.path) == ("dead_header", "base/b.h")


def test_source_that_no_target_builds_is_found(make_sources):
    files = {
        "base/a.cc": "",
        "base/b.cc": "",
        "loader/python/CMakeLists.txt": "file(GLOB sources CONFIGURE_DEPENDS extension/*.cc)",
        "loader/python/extension/module.cc": "",
        "tests/fuzz/CMakeLists.txt": "larder_fuzz(tar_fuzz cache/protocol/tar.cc)",
        "tests/fuzz/tar_fuzz.cc": "",
    }
    [finding] = tidy.check(make_sources(files), built={"base/a.cc"})
    assert (finding.rule, finding.path) == ("dead_source", "base/b.cc")


def test_header_of_uninstalled_package_is_found(make_sources):
    files = {
        "tools/install-packages": "liblmdb-dev libboost1.81-dev\n",
        "cache/x.cc": "#include <lmdb.h>\n#include <vector>\n#include <sys/stat.h>\n#include <boost/asio/io_context.hpp>\n",
        "cache/y.cc": "#include <zstd.h>\n#include <curl/curl.h>\n#include <boost/json/value.hpp>\n",
    }
    findings = tidy.check(make_sources(files))
    assert [(finding.path, finding.line, finding.rule) for finding in findings] == [
        ("cache/y.cc", line, "unlisted_package") for line in (1, 2, 3)
    ]


# (file, text with a link that leads nowhere, text with links that lead somewhere)
LINKS = [
    ("docs/x.md", "[page](gone.md)", "[page](y.md), [folder](../base), [web](https://example.org/gone.md#part)"),
    ("docs/x.md", "[part](y.md#gone)", "[part](y.md#first-part-of-2), [again](y.md#first-part-of-2-1)"),
    ("docs/x.md", "# Here\n\n[part](#there)", "# Here\n\n[part](#here)"),
    ("docs/x.md", "[a link\nover lines](gone.md)", "[a link\nover `code](gone.md)` and lines](y.md)"),
    ("docs/x.md", "[page]: gone.md", "[page]: y.md"),
    ("README.md", "[page](y.md)", "[page](docs/y.md)\n\n    [code](gone.md)\n\n```\n[code](gone.md)\n```\n"),
    ("docs/x.md", "`docs/gone.md` has it", "`docs/y.md` has it, and so has y.md; `docs/en/gone.md` is another repository's"),
    ("docs/x.md", "`base/gone.h` has it", "`base/y.cc` has it, as `base/NAME.h` and `pkg/gone.py` of others"),
    ("base/x.cc", "// see docs/gone.md", "// see docs/y.md, or https://example.org/docs/gone.md\n"),
    ("tools/x.py", 'help="see gone.md"', 'help="see docs/y.md"'),
]


@pytest.mark.parametrize(("path", "bad", "good"), LINKS)
def test_link_that_leads_nowhere_is_found(make_sources, path, bad, good):
    others = {"docs/y.md": "## First `part` (of 2)\n\n## First part of 2\n\n    # Gone\n", "base/y.cc": ""}
    [finding] = tidy.check(make_sources(others | {path: bad}))
    assert (finding.rule, finding.path) == ("dead_link", path)
    assert tidy.check(make_sources(others | {path: good})) == []
