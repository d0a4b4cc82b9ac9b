"""The short forms of the benches: their output is complete and their counts are exact. Speeds are not checked."""

from __future__ import annotations

import pathlib
import sys
import xml.etree.ElementTree
from collections.abc import Callable

import pytest
from PIL import Image
from servers import S3, FaultProxy


def test_hits_come_from_the_expected_tier(bench) -> None:
    result = bench("hits")
    assert result["blocks_per_second_4k"] > 0
    for tier, reference in (("memory", "loop_bytes_per_second"), ("disk", "fio_bytes_per_second")):
        assert result[f"{tier}_ratio"] == min(row["ratio"] for row in result[tier])
        for row in result[tier]:
            assert row["block_bytes"] == 131072
            assert row["larder_bytes_per_second"] > 0 and row[reference] > 0


def test_curve_hit_ratios_equal_the_cached_share(bench, tmp_path: pathlib.Path) -> None:
    svg = tmp_path / "curve.svg"
    points = bench("curve", "--plot", svg)
    assert [point["kappa"] for point in points] == [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1]
    for point in points:
        assert point["hit_ratio"] == pytest.approx(point["kappa"], abs=0.01)
        assert point["lru_hit_ratio"] == pytest.approx(point["lru_hit_ratio_predicted"], abs=0.05)
        assert point["predicted"] > 0 and point["measured"] > 0 and point["lru_measured"] > 0
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_jobs_in_shared_order_cost_the_remote_little_more_than_one(bench, tmp_path: pathlib.Path) -> None:
    svg = tmp_path / "shared.svg"
    points = bench("shared", "--plot", svg)
    assert [(point["jobs"], point["speeds"], point["start"]) for point in points] == [
        (1, "equal", "together"), (4, "equal", "together"), (4, "equal", "staggered"),
        (4, "1, 2, 4", "together"), (4, "1, 2, 4", "staggered"),
    ]  # fmt: skip
    alone = points[0]
    assert alone["hit_ratio"] == pytest.approx(0.5, abs=0.02)
    for point in points[1:]:
        # Without sharing, four jobs of equal speed cost four times as much.
        assert point["remote_bytes_per_epoch"] < 1.5 * alone["remote_bytes_per_epoch"]
        assert point["hit_ratio"] > 0.7
        assert point["predicted"] > 0 and point["aggregate_rate"] > 0 and point["seeded_aggregate_rate"] > 0
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


@pytest.mark.decisions
def test_plan_matches_the_linear_program(bench) -> None:
    rows = bench("assign")
    bounds = ["none", "floors", "floors, slow nodes", "floors, shared nodes"]
    assert [(row["bounds"], row["objective"]) for row in rows] == [
        (name, objective) for name in bounds for objective in ("efficiency", "max-min")
    ]
    for row in rows:
        assert row["ms"] > 0 and row["cpu_ms"] > 0 and row["again_ms"] > 0 and row["again_cpu_ms"] > 0
        assert (row["bound_nodes"] > 0) == ("nodes" in row["bounds"])
        assert (row["lp_ms"] is None) == (row["bounds"] == "floors, shared nodes")
        if row["lp_ms"] is not None:
            # Rates on slow nodes are found in rounds, which stop before they are exact.
            assert row["max_abs_diff"] < (1e-3 if "slow" in row["bounds"] else 1e-6)


@pytest.mark.decisions
def test_plans_are_measured_against_the_best_ones(bench) -> None:
    result = bench("optimum")
    assert [row["objective"] for row in result["objectives"]] == ["max-min", "throughput", "utilisation", "efficiency"]
    assert result["equal_share_error"] < 1e-9
    for row in result["objectives"]:
        assert row["clusters"] == 60 and row["impossible"] == 0
        assert 0 <= row["gap_median"] <= 0.001 and row["gap_median"] <= row["gap_p99"] <= row["gap_worst"] < 1


@pytest.mark.decisions
def test_decisions_are_made_in_every_setting(bench) -> None:
    rows = bench("decide")
    settings = {(row["gpu_types"], row["tight_deadlines"], row["cells"]) for row in rows}
    assert settings == {(1, False, False), (3, False, False), (1, True, False), (1, False, True)}
    assert {row["policy"] for row in rows if row["gpu_types"] == 3} >= {"max-min", "water-filling"}
    assert {row["datasets_per_node"] for row in rows} == {8, 10}
    for row in rows:
        assert row["running"] > 0 and row["quotas"] > 0
        assert 0 < row["decide_ms"] and 0 < row["plan_ms"]
        assert 0 < row["decision_ms"] <= row["decision_ms_max"] and row["parts_ms"] > 0
    (cells,) = [row for row in rows if row["cells"]]
    assert cells["running"] == 48  # one gang for each cell of one node


def test_reports_are_answered_with_leases(bench) -> None:
    (row,) = bench("reports")
    assert row["nodes"] == 40 and row["group"] == 10
    assert 0 < row["reports_per_second"] < 45
    assert 0 < row["cpu_s_per_second"]


def test_simulated_lru_matches_lru_of_blocks(bench) -> None:
    rows = bench("lru")
    with_closed_form = [row for row in rows if row["closed_form"] is not None]
    assert [row["kappa"] for row in with_closed_form] == [0.1, 0.25, 0.5, 0.75, 0.9]
    for row in with_closed_form:
        assert row["simulated"] == pytest.approx(row["closed_form"], abs=1e-6)
        assert row["blocks"] == pytest.approx(row["closed_form"], abs=0.01)
    assert len(rows) == len(with_closed_form) + 6
    for row in rows:
        assert row["blocks"] == pytest.approx(row["simulated"], abs=0.06)


@pytest.mark.decisions
def test_every_policy_is_simulated(bench) -> None:
    rows = bench("simulate", "--policy", "fifo", "--policy", "max-min", "--policy", "srtf")
    assert [row["policy"] for row in rows] == ["fifo", "max-min", "srtf"]
    for row in rows:
        assert row["jobs"] == row["finished"] == 500
        assert row["events"] >= 2 * row["jobs"]
        assert row["events_per_s"] == pytest.approx(row["events"] / row["wall_s"])
        assert row["rss_mib"] > 1


def test_misses_are_counted_for_every_job(bench) -> None:
    result = bench("miss")
    assert [run["jobs"] for run in result["runs"]] == [1, 8]
    for run in result["runs"]:
        assert len(run["each"]) == run["jobs"]
        assert run["ratio_min"] == min(job["ratio"] for job in run["each"])
        for job in run["each"]:
            assert job["epochs"] >= 1 and job["blocks"] == job["epochs"] * 512
            assert job["bytes"] == job["blocks"] * 65536


def test_misses_are_measured_with_the_remote_of_the_options(
    bench, s3: S3, fault_proxy: Callable[..., FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.client.create_bucket("bench-misses")
    for i in range(64):
        s3.client.put("bench-misses", f"data/{i:03}.bin", bytes([i]) * 65536)
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    proxy = fault_proxy(s3.port)
    remote = ("--url", "s3://bench-misses/data", "--endpoint", proxy.endpoint)
    result = bench("miss", *remote, "--rate", "8MB/s")
    assert [run["jobs"] for run in result["runs"]] == [1, 8]
    for run in result["runs"]:
        granted = [job["granted"] for job in run["each"]]
        assert len(set(granted)) == run["jobs"] and sum(granted) == pytest.approx(8e6)
        assert all(job["measured"] > 0 for job in run["each"])
        assert all(job["blocks"] == job["epochs"] * 64 for job in run["each"])
    targets = [str(request["target"]) for request in proxy.requests()]
    assert any(target.startswith("/bench-misses/data/") for target in targets)


def test_every_layout_of_tokens_is_read_completely(bench) -> None:
    result = bench("layout")
    assert result["samples"] == 2048
    assert len(result["layouts"]) == 4
    assert result["token_sum"] > 0  # the bench fails if layouts give different tokens
    assert all(row["samples_per_second"] > 0 for row in result["layouts"])


def test_compressed_cache_holds_more(bench) -> None:
    runs = {(run["data"], run["cache"], run["compression"]): run["hit_ratio"] for run in bench("compression")["runs"]}
    assert len(runs) == 12
    for setting in ("zstd:3", "auto"):
        assert runs["words", "half", setting] > runs["words", "half", "none"] + 0.2
        assert abs(runs["random", "half", setting] - runs["random", "half", "none"]) < 0.1


def test_restarted_daemon_has_every_block(bench) -> None:
    result = bench("start")
    assert result["cached_blocks"] == 20_000
    assert result["first_block_was_a_hit"] is True
    assert result["heap_bytes"] > 0


def test_sessions_get_their_first_batch(bench) -> None:
    result = bench("sessions")
    assert result["samples"] == result["sessions"] * 32
    assert [row["budget_bytes"] for row in result["budgets"]] == [256 << 20, 48 << 20]
    assert all(row["cpu_ms"] > 0 for row in result["budgets"])


def test_every_block_comes_from_the_other_node(bench) -> None:
    rows = bench("peers")
    assert [row["block_bytes"] for row in rows] == [128 << 10, 1 << 20]
    for row in rows:
        assert row["peer_hits"] == 3 * (16 << 20) / row["block_bytes"]
        assert min(row["peer_bytes_per_second"], row["local_bytes_per_second"], row["loopback_bytes_per_second"]) > 0


def test_manifests_of_many_samples_are_opened(bench) -> None:
    for run in bench("manifest"):
        assert run["samples"] == 100_000
        assert run["bytes_per_sample"] < 33  # with the header and the classes
        assert min(run["open_ms"], run["read_page_ms"], run["read_whole_ms"]) > 0


def test_all_three_readers_read_the_same_bytes(bench, tmp_path: pathlib.Path) -> None:
    images = tmp_path / "images"
    for kind in range(3):
        (images / f"class-{kind}").mkdir(parents=True)
        for i in range(20):
            Image.effect_noise((40 + i, 30), 50 + kind).save(images / f"class-{kind}" / f"{i}.png")
    result = bench("python", "--data", images, "--python", sys.executable)
    assert result["samples"] == 60
    assert result["bytes"] == sum(path.stat().st_size for path in images.rglob("*.png"))
    assert result["open_read_ratio"] > 0 and result["webdataset_ratio"] > 0
