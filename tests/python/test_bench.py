"""The short forms of the benches: their output is whole and their counts are exact. Speeds are not looked at."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

import pytest
from PIL import Image


@pytest.fixture
def bench(larder_bin: pathlib.Path, tmp_path: pathlib.Path):
    def run(name: str, *arguments: object) -> object:
        ran = subprocess.run(
            [larder_bin / "larder", "bench", name, "--quick", "--json", "--directory", tmp_path, *map(str, arguments)],
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        assert list(tmp_path.glob("larder-bench-*")) == [], "it cleans up after itself"
        return json.loads(ran.stdout)

    return run


def test_hits_come_from_where_they_should(bench) -> None:
    result = bench("hits")
    assert result["blocks_per_second_4k"] > 0
    for tier, peer in (("memory", "loop_bytes_per_second"), ("disk", "fio_bytes_per_second")):
        assert result[f"{tier}_ratio"] == min(row["ratio"] for row in result[tier])
        for row in result[tier]:
            assert row["block_bytes"] == 131072
            assert row["larder_bytes_per_second"] > 0 and row[peer] > 0


def test_the_curves_hit_ratios_are_the_cached_share(bench, tmp_path: pathlib.Path) -> None:
    svg = tmp_path / "curve.svg"
    points = bench("curve", "--plot", svg)
    assert [point["kappa"] for point in points] == [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1]
    for point in points:
        assert point["hit_ratio"] == pytest.approx(point["kappa"], abs=0.01)
        assert point["lru_hit_ratio"] == pytest.approx(point["lru_hit_ratio_predicted"], abs=0.05)
        assert point["predicted"] > 0 and point["measured"] > 0 and point["lru_measured"] > 0
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_a_plan_is_as_good_as_the_linear_programs(bench) -> None:
    rows = bench("assign")
    assert [(row["objective"], row["jobs"]) for row in rows] == [
        ("efficiency", 1000), ("max_min", 1000), ("efficiency", 200), ("max_min", 200)
    ]  # fmt: skip
    for row in rows:
        assert row["ms"] > 0 and (row["lp_ms"] is None) == (row["jobs"] == 1000)
        if row["lp_ms"] is not None:
            assert row["max_abs_diff"] < 1e-6


def test_misses_are_counted_for_every_job(bench) -> None:
    result = bench("miss")
    assert [run["jobs"] for run in result["runs"]] == [1, 8]
    for run in result["runs"]:
        assert len(run["each"]) == run["jobs"]
        assert run["ratio_min"] == min(job["ratio"] for job in run["each"])


def test_every_layout_of_tokens_is_read_whole(bench) -> None:
    result = bench("layout")
    assert result["samples"] == 2048
    assert len(result["layouts"]) == 4
    assert result["token_sum"] > 0  # the bench fails where one layout gives other tokens than another
    assert all(row["samples_per_second"] > 0 for row in result["layouts"])


def test_a_compressed_cache_holds_more(bench) -> None:
    runs = {(run["data"], run["cache"], run["compression"]): run["hit_ratio"] for run in bench("compression")["runs"]}
    assert len(runs) == 12
    for setting in ("zstd:3", "auto"):
        assert runs["words", "half", setting] > runs["words", "half", "none"] + 0.2
        assert abs(runs["random", "half", setting] - runs["random", "half", "none"]) < 0.1


def test_a_restarted_daemon_has_every_block(bench) -> None:
    result = bench("start")
    assert result["cached_blocks"] == 20_000
    assert result["first_block_was_a_hit"] is True
    assert result["heap_bytes"] > 0


def test_sessions_get_their_first_batch(bench) -> None:
    result = bench("sessions")
    assert result["samples"] == result["sessions"] * 32


def test_all_three_readers_read_the_same(bench, tmp_path: pathlib.Path) -> None:
    images = tmp_path / "images"
    for kind in range(3):
        (images / f"class-{kind}").mkdir(parents=True)
        for i in range(20):
            Image.effect_noise((40 + i, 30), 50 + kind).save(images / f"class-{kind}" / f"{i}.png")
    result = bench("python", "--data", images, "--python", sys.executable)
    assert result["samples"] == 60
    assert result["bytes"] == sum(path.stat().st_size for path in images.rglob("*.png"))
    assert result["open_read_ratio"] > 0 and result["webdataset_ratio"] > 0


def test_jobs_on_several_nodes_share_one_remote(bench, tmp_path: pathlib.Path) -> None:
    svg = tmp_path / "joint.svg"
    policies = {row["policy"]: row for row in bench("joint", "--plot", svg)}
    assert list(policies) == ["static", "lru", "max_min", "efficiency"]
    names = ["images-large", "images-small", "speech", "text", "video", "scans"]
    for policy, row in policies.items():
        assert [job["name"] for job in row["jobs"]] == names
        assert row["remote_bytes"] > 0 and row["min_ratio"] > 0
        for job in row["jobs"]:
            assert 0 < job["measured"] <= 1.1 * job["ideal"]
            assert job["equal_share"] > 0 and (job["predicted"] is None) == (policy == "lru")
        # Six jobs' bursts of 1 MiB, whatever the machine does meanwhile.
        assert row["excess_bytes"] <= 8 * (1 << 20)
    for policy in ("static", "max_min", "efficiency"):
        assert policies[policy]["min_ratio_predicted"] >= 0.999, "nobody is promised less than an equal share"
    assert xml.etree.ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_the_simulator_takes_the_scenario_that_runs(bench) -> None:
    rows = bench("reality", "--policy", "static", "--policy", "max_min")
    assert [row["policy"] for row in rows] == ["static", "max_min"]
    names = ["images-large", "images-small", "speech", "text", "video", "scans"]
    for row in rows:
        assert [job["name"] for job in row["jobs"]] == names
        assert row["largest_off"] == max(abs(job["off"]) for job in row["jobs"])
        for job in row["jobs"]:
            assert job["measured_s"] > 0
            assert job["off"] == pytest.approx(job["simulated_s"] / job["measured_s"] - 1)
    # The simulation's are the same on every machine: nobody reads two epochs faster than at f*.
    ideal = [20 * 2**20 / 30e6, 20 * 2**20 / 10e6, 12 * 2**20 / 15e6, 16 * 2**20 / 6e6, 24 * 2**20 / 20e6, 18 * 2**20 / 7e6]
    for row in rows:
        assert all(ideal[j] < job["simulated_s"] < 10 * ideal[j] for j, job in enumerate(row["jobs"]))


def test_events_in_mid_run_are_each_followed_to_the_end(bench) -> None:
    (row,) = bench("joint", "--events")
    assert row["policy"] == "max_min"
    assert row["network"] == ("namespaces" if may_make_networks() else "loopback")
    assert [event["event"] for event in row["events"]] == ["job ends", "job joins", "cache is lost", "quota is pinned"]
    for event in row["events"]:
        assert event["epoch_seconds"] > 0 and event["epochs"] == pytest.approx(event["seconds"] / event["epoch_seconds"])
        assert event["excess_bytes"] <= event["burst_bytes"], "whatever happens, jobs together take no more than there is"


def may_make_networks() -> bool:
    tried = "ip link set lo up && ip link add hub type bridge && ip link add node0 type veth peer name uplink"
    return subprocess.run(["unshare", "--net", "sh", "-c", tried], capture_output=True).returncode == 0


def children_of(process: int) -> list[int]:
    children = []
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
        if parent == process:
            children.append(int(status.parent.name))
    return children


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_nothing(larder_bin: pathlib.Path, tmp_path: pathlib.Path, number: signal.Signals) -> None:
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout
    bench = subprocess.Popen(
        [larder_bin / "larder", "bench", "joint", "--events", "--quick", "--directory", tmp_path],
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(children := children_of(bench.pid)) < 5:  # an allocator and four nodes
        assert bench.poll() is None
        time.sleep(0.02)
    bench.send_signal(number)
    assert bench.wait(60) == 1
    assert bench.stderr is not None and "was interrupted" in bench.stderr.read()
    assert list(tmp_path.glob("larder-bench-*")) == []
    assert [child for child in children if pathlib.Path(f"/proc/{child}").exists()] == []
    assert subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True).stdout == links
