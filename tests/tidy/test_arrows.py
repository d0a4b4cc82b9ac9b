"""tools/lint/arrows.py lets the allowed includes pass and names each forbidden one."""

import subprocess
import sys

import arrows
import pytest

FILES = [
    "base/error.h",
    "base/server/http.h",
    "cache/store.h",
    "cache/store/index.h",
    "cache/protocol/wire.h",
    "loader/larder.h",
    "allocator/protocol/codec.h",
    "allocator/assign.h",
    "scheduler/policy.h",
    "tools/larder/table.h",
    "bench/hits.h",
    "tests/support/fake.h",
]
ALLOWED = {
    "base/x.cc": ["base/error.h"],
    "base/server/x.cc": ["base/error.h", "base/server/http.h"],
    "cache/protocol/x.cc": ["base/error.h", "cache/protocol/wire.h"],
    "cache/x.cc": [
        "base/error.h",
        "base/server/http.h",
        "cache/store.h",
        "cache/store/index.h",
        "cache/protocol/wire.h",
        "allocator/protocol/codec.h",
    ],
    "loader/x.cc": ["base/error.h", "cache/protocol/wire.h", "loader/larder.h"],
    "allocator/protocol/x.cc": ["base/error.h", "base/server/http.h", "allocator/protocol/codec.h"],
    "allocator/x.cc": ["base/error.h", "base/server/http.h", "allocator/protocol/codec.h", "allocator/assign.h"],
    "scheduler/x.cc": [
        "base/error.h",
        "base/server/http.h",
        "allocator/protocol/codec.h",
        "allocator/assign.h",
        "scheduler/policy.h",
    ],
    "tools/x.cc": [path for path in FILES if not path.startswith(("bench/", "tests/"))],
    "bench/x.cc": FILES,
    "tests/x.cc": FILES,
}


@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize("source", ALLOWED)
def test_only_allowed_includes_pass(make_sources, source, target):
    files = {path: "" for path in FILES} | {source: f'#pragma once\n\n#include "{target}"\n'}
    findings = arrows.check(make_sources(files))
    if target in ALLOWED[source]:
        assert findings == []
    else:
        [finding] = findings
        assert (finding.path, finding.line) == (source, 3)
        assert target in finding.text and "must not include" in finding.text


@pytest.mark.parametrize("part", ["base", "loader", "cache/protocol"])
@pytest.mark.parametrize("header", ["spdlog/spdlog.h", "boost/json.hpp", "fmt/format.h", "liburing.h"])
def test_heavy_include_in_training_code_is_found(make_sources, part, header):
    [finding] = arrows.check(make_sources({f"{part}/x.cc": f"#include <{header}>\n"}))
    assert header in finding.text
    assert arrows.check(make_sources({"cache/device/x.cc": f"#include <{header}>\n"})) == []


def test_include_that_does_not_start_at_root_is_found(make_sources):
    [finding] = arrows.check(make_sources({"cache/store.h": "", "cache/x.cc": '#include "store.h"\n'}))
    assert "not a path from the repository's root" in finding.text
    [finding] = arrows.check(make_sources({"cache/store.h": "", "cache/x.cc": "#include <cache/store.h>\n"}))
    assert "write it in quotes" in finding.text


def test_cycle_between_subfolders_is_named(make_sources):
    files = {
        "cache/store.h": '#include "cache/shard/shard.h"\n',
        "cache/store/index.h": "",
        "cache/shard/shard.h": '#include "cache/device/ring.h"\n',
        "cache/device/ring.h": '\n#include "cache/store/index.h"\n',
    }
    [finding] = arrows.check(make_sources(files))
    assert "include cycle" in finding.text
    for part in ("cache/store", "cache/shard", "cache/device"):
        assert part in finding.text


def test_shared_lower_part_is_no_cycle(make_sources):
    files = {
        "cache/device.h": "",
        "cache/device/ring.h": '#include "cache/device.h"\n',
        "cache/store/index.h": '#include "cache/device.h"\n',
        "cache/shard/shard.h": '#include "cache/device/ring.h"\n#include "cache/store/index.h"\n',
    }
    assert arrows.check(make_sources(files)) == []


def test_command_fails_on_forbidden_include(tmp_path, repository):
    (tmp_path / "base").mkdir()
    (tmp_path / "loader").mkdir()
    (tmp_path / "loader" / "larder.h").write_text("")
    (tmp_path / "base" / "x.cc").write_text('#include "loader/larder.h"\n')
    command = [sys.executable, repository / "tools/lint/arrows.py", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert 'base/x.cc:1: [arrows] base must not include "loader/larder.h"' in run.stdout
