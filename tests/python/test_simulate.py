"""`larder simulate` as a user runs it: single simulations, comparisons, capacity searches, guarantees and invalid
traces."""

import csv
import json
import pathlib
import re
import statistics
import subprocess

import pytest

TRACES = pathlib.Path(__file__).resolve().parents[3] / "shared" / "traces"
POISSON = "poisson:20,300"
OVER_COMMITTED = """
[[hierarchy]]
name = "h"
gpu_type = "v100"
levels = [{ name = "node", of = 8 }]
node = "node"
nodes = ["n[0-1]"]
[[virtual_cluster]]
name = "red"
cells = [{ hierarchy = "h", level = "node", count = 2 }]
[[virtual_cluster]]
name = "blue"
cells = [{ hierarchy = "h", level = "node", count = 1 }]
"""
ONE_NODE_EACH = OVER_COMMITTED.replace("count = 2", "count = 1")
STORAGE = ["--cache-size", "500GB", "--bandwidth", "300MB/s"]


@pytest.fixture
def simulate(larder_bin: pathlib.Path):
    def run(*arguments: str, status: int = 0) -> str:
        done = subprocess.run([larder_bin / "larder", "simulate", *arguments], capture_output=True, text=True, timeout=300)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    return run


def trace_file(path: pathlib.Path, rows: str, header: str = "submit_s,duration_s,gpus,vc") -> str:
    path.write_text(header + "\n" + rows)
    return str(path)


def test_measure_limits_statistics_to_a_range_of_jobs(simulate, tmp_path: pathlib.Path) -> None:
    jobs = tmp_path / "jobs.csv"
    result = json.loads(
        simulate(POISSON, "--gpus", "24", *STORAGE, "--measure", "100-149", "--jobs-csv", str(jobs), "--json")
    )
    assert (result["jobs"], result["finished"], result["jobs_measured"]) == (300, 300, 50)
    with jobs.open() as rows:
        times = [float(row["jct_s"]) for row in csv.DictReader(rows)]
    assert result["jct_s"]["mean"] == pytest.approx(sum(times[100:150]) / 50)
    for wrong in ("100", "9-3", "a-b", "1-"):
        assert "is not FIRST-LAST" in simulate(POISSON, "--measure", wrong, status=2)


def test_same_seed_gives_the_same_files(simulate, tmp_path: pathlib.Path) -> None:
    def run(name: str, seed: int) -> list[bytes]:
        files = [tmp_path / f"{name}-{kind}.csv" for kind in ("jobs", "timeline")]
        simulate(POISSON, "--gpus", "24", *STORAGE, "--seed", str(seed), "--node-lifetime", "1e6",
                 "--jobs-csv", str(files[0]), "--timeline-csv", str(files[1]))  # fmt: skip
        return [file.read_bytes() for file in files]

    assert run("one", 1) == run("two", 1)
    assert run("one", 1) != run("three", 2)


def test_run_reports_every_job(simulate, tmp_path: pathlib.Path) -> None:
    jobs = tmp_path / "jobs.csv"
    result = json.loads(simulate(POISSON, "--gpus", "24", *STORAGE, "--policy", "srtf", "--jobs-csv", str(jobs), "--json"))
    assert result["jobs"] == result["finished"] == 300
    assert 0 < result["gpu_utilisation"] <= 1
    assert result["remote_bytes"] <= result["read_bytes"]
    rows = jobs.read_text().splitlines()
    assert len(rows) == 301
    assert all(row.split(",")[4] == "finished" for row in rows[1:])
    text = simulate(POISSON, "--gpus", "24", *STORAGE)
    assert "completion time" in text and "events/s" in text


@pytest.mark.decisions
def test_run_is_plotted(simulate, tmp_path: pathlib.Path) -> None:
    simulate(POISSON, "--gpus", "24", *STORAGE, "--plot", str(tmp_path / "drawings"))
    for name in ("jct.svg", "utilisation.svg", "datasets.svg"):
        assert "<svg" in (tmp_path / "drawings" / name).read_text()
    simulate(POISSON, "--gpus", "24", *STORAGE, "--plot", str(tmp_path / "again"))
    for drawing in (tmp_path / "drawings").iterdir():
        assert drawing.read_bytes() == (tmp_path / "again" / drawing.name).read_bytes()


@pytest.mark.decisions
def test_plot_names_its_policy_cache_and_trace(simulate, tmp_path: pathlib.Path) -> None:
    simulate(POISSON, "--gpus", "24", "--cache-size", "20TB", "--bandwidth", "2GB/s", "--dataset-copies", "0",
             "--policy", "srtf", "--plot", str(tmp_path))  # fmt: skip
    for name in ("jct.svg", "utilisation.svg", "datasets.svg"):
        assert f"<!-- policy srtf, cache uniform+joint, trace {POISSON} -->" in (tmp_path / name).read_text()
    assert "<!-- cached (TB) -->" in (tmp_path / "datasets.svg").read_text()


@pytest.mark.decisions
def test_plot_without_cache_shows_no_negative_bytes(simulate, tmp_path: pathlib.Path) -> None:
    simulate(POISSON, "--gpus", "24", "--plot", str(tmp_path))
    text = (tmp_path / "datasets.svg").read_text()
    assert "<!-- cached (B) -->" in text
    assert "<!-- \N{MINUS SIGN}" not in text


@pytest.mark.decisions
def test_comparison_is_plotted(simulate, tmp_path: pathlib.Path) -> None:
    drawing = tmp_path / "compare.svg"
    simulate("compare", POISSON, "--gpus", "24", "--policies", "fifo,srtf", "--caches", "uniform+joint,lru",
             "--cache-sizes", "500GB,2TB", "--bandwidths", "200MB/s", "--plot", str(drawing))  # fmt: skip
    text = drawing.read_text()
    for shown in (f"trace {POISSON}", "fifo, uniform+joint", "srtf, lru", "2 TB of cache,"):
        assert f"<!-- {shown} -->" in text or shown in text


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--caches", "none", "--cache-sizes", "0", "--bandwidths", "1TB/s", "--plot"],
        ["--jobs-csv"],
        ["--timeline-csv"],
    ],
)
def test_file_that_cannot_be_written_is_named_before_the_simulation(
    simulate, tmp_path: pathlib.Path, words: list[str]
) -> None:
    path = tmp_path / "none" / "file"
    said = simulate(*words[:-1], POISSON, "--gpus", "24", words[-1], str(path), status=4)
    assert said == f"larder: write {path}: No such file or directory\n"


@pytest.mark.decisions
def test_only_the_largest_of_many_datasets_are_plotted(simulate, tmp_path: pathlib.Path) -> None:
    timeline = tmp_path / "timeline.csv"
    simulate(POISSON, "--gpus", "24", *STORAGE, "--dataset-copies", "0",
             "--plot", str(tmp_path), "--timeline-csv", str(timeline))  # fmt: skip
    with timeline.open() as rows:
        samples = list(csv.DictReader(rows))
    shown = [column for column in samples[0] if column.endswith("_cached_bytes")]
    assert len(shown) == 8 and shown[-1] == "others_cached_bytes"
    for sample in samples:
        assert sum(float(sample[column]) for column in shown) == pytest.approx(float(sample["cached_bytes"]), abs=10)
    assert any(float(sample["others_cached_bytes"]) > 0 for sample in samples)
    assert "<!-- others -->" in (tmp_path / "datasets.svg").read_text()


def test_tenants_are_read_like_the_allocators_config(simulate, tmp_path: pathlib.Path) -> None:
    trace = trace_file(tmp_path / "trace.csv", "0,100,4,vision\n0,100,4,vision\n0,100,4,language\n")
    tenants = tmp_path / "tenants.toml"
    jobs = tmp_path / "jobs.csv"

    def starts(gpu_quota: int) -> list[float]:
        tenants.write_text(f'[scheduler.tenant.lab]\ngpu_quota = {gpu_quota}\n[scheduler.tenant.vision]\nparent = "lab"\n')
        simulate(trace, "--gpus", "16", "--tenants", str(tenants), "--policy", "fifo-backfill", "--jobs-csv", str(jobs))
        with jobs.open() as rows:
            return [float(row["start_s"]) for row in csv.DictReader(rows)]

    assert starts(8) == [0, 0, 0]
    assert starts(4) == pytest.approx([0, 100, 0], abs=1)
    tenants.write_text("[scheduler.tenant.vision]\nquota = 4\n")
    assert "quota" in simulate(trace, "--tenants", str(tenants), status=2)
    tenants.write_text("[scheduler.tenant.vision]\nweight = 4\n")
    assert "--cells" in simulate("guarantee", trace, "--tenants", str(tenants), status=2)


@pytest.mark.decisions
def test_compare_has_a_row_for_each_combination(simulate) -> None:
    rows = json.loads(simulate("compare", POISSON, "--gpus", "24", "--policies", "fifo,srtf,srtf/blind", "--caches",
                               "uniform+joint,lru,none", "--cache-sizes", "1TB,2TB", "--bandwidths", "200MB/s", "--json"))  # fmt: skip
    assert len(rows) == 3 * 3 * 2
    assert {row["policy"] for row in rows} == {"fifo", "srtf", "srtf/blind"}
    assert all(row["finished"] == 300 for row in rows)
    by_choice = {(row["policy"], row["cache"], row["cache_bytes"]): row["jct_s"]["mean"] for row in rows}
    assert by_choice["fifo", "uniform+joint", 1e12] < by_choice["fifo", "none+fair", 1e12]


@pytest.mark.decisions
def test_compare_spreads_over_seeds(simulate) -> None:
    words = ["compare", POISSON, "--gpus", "24", "--caches", "uniform+joint,quiver", "--cache-sizes", "500GB",
             "--bandwidths", "200MB/s"]  # fmt: skip
    rows = json.loads(simulate(*words, "--seeds", "3", "--seed", "5", "--json"))
    (sixth, _) = json.loads(simulate(*words, "--seed", "6", "--json"))
    assert [one["seed"] for one in rows[1]["seeds"]] == [5, 6, 7]
    assert rows[0]["seeds"][1]["jct_s"] == sixth["jct_s"]
    means = [one["jct_s"]["mean"] for one in rows[1]["seeds"]]
    assert rows[1]["jct_s"]["mean"] == pytest.approx(statistics.mean(means))
    spread = rows[1]["spread"]["jct_s"]
    assert spread["deviation"] == pytest.approx(statistics.stdev(means))
    assert (spread["min"], spread["max"]) == pytest.approx((min(means), max(means)))
    ratios = [one["jct_s"]["mean"] / base["jct_s"]["mean"] for one, base in zip(rows[1]["seeds"], rows[0]["seeds"], strict=True)]
    assert rows[1]["spread"]["jct_ratio"]["mean"] == pytest.approx(statistics.mean(ratios))
    (faster, _) = json.loads(simulate(*words, "--seed", "6", "--arrivals", "2", "--json"))
    assert faster["offered_load"] == pytest.approx(2 * sixth["offered_load"])
    assert "Means over 3 seeds" in simulate(*words, "--seeds", "3")


@pytest.mark.decisions
def test_compare_shows_what_knowledge_is_worth(simulate) -> None:
    words = ["compare", POISSON, "--gpus", "24", "--caches", "uniform+joint,lru", "--cache-sizes", "500GB",
             "--bandwidths", "200MB/s"]  # fmt: skip
    rows = json.loads(simulate(*words, "--epochs-known", "both", "--json"))
    assert [(row["cache_system"], row["epochs_known"]) for row in rows] == [
        ("uniform+joint", True), ("lru", True), ("uniform+joint", False), ("lru", False)]  # fmt: skip
    assert rows[0]["jct_s"] != rows[2]["jct_s"] and rows[1]["jct_s"] == rows[3]["jct_s"]
    assert rows[3]["spread"]["jct_ratio"]["mean"] == pytest.approx(rows[3]["jct_s"]["mean"] / rows[2]["jct_s"]["mean"])
    assert "EPOCHS KNOWN" in simulate(*words, "--epochs-known", "both")
    (misled, _) = json.loads(simulate(*words, "--rate-error", "0.3", "--json"))
    assert misled["jct_s"] != rows[0]["jct_s"]


@pytest.mark.decisions
def test_checkpoints_may_take_from_the_remote(simulate, tmp_path: pathlib.Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text(
        "reference = 'v100'\n[[dataset]]\nname = 'd'\nsize = '100GB'\n[[model]]\nname = 'm'\ndataset = 'd'\n"
        "rate = { any = '100MB/s' }\ncheckpoint = '10GB'\n"
    )
    words = [POISSON, "--gpus", "24", "--workload", str(table), "--cache", "none", "--bandwidth", "1GB/s"]
    own, shared = (
        json.loads(simulate(*words, "--checkpoint-bandwidth", bandwidth, "--json")) for bandwidth in ("1GB/s", "remote")
    )
    assert shared["jct_s"]["mean"] > own["jct_s"]["mean"]
    assert "--checkpoint-bandwidth: " in simulate(*words, "--checkpoint-bandwidth", "fast", status=2)
    assert "reported plans do not know" in simulate(
        POISSON, "--reported-plans", "--checkpoint-bandwidth", "remote", status=2
    )


@pytest.mark.decisions
def test_capacity_found_reaches_its_target_and_less_does_not(simulate) -> None:
    found = json.loads(simulate("capacity", POISSON, "--gpus", "24", "--bandwidth", "200MB/s", "--of", "cache", "--most", "4TB",
                                "--metric", "utilisation", "--within", "0.1", "--json"))  # fmt: skip
    assert 0 < found["least"] <= 4e12
    reached = {point["amount"]: point["value"] for point in found["points"]}
    assert reached[found["least"]] >= found["target"]
    assert any(value < found["target"] for value in reached.values())
    refused = simulate("capacity", POISSON, "--gpus", "24", "--bandwidth", "1MB/s", "--of", "cache", "--most", "1GB",
                       "--metric", "utilisation", "--reach", "0.99", status=2)  # fmt: skip
    assert "even --most, " in refused


@pytest.mark.decisions
def test_no_tenant_waits_longer_than_alone(simulate, tmp_path: pathlib.Path) -> None:
    rows = "".join(f"{60 * i},{900 + 37 * (i % 11)},{(1, 2, 8, 4)[i % 4]},{'abc'[i % 3]}\n" for i in range(200))
    found = json.loads(simulate("guarantee", trace_file(tmp_path / "t.csv", rows), "--gpus", "96", "--json"))
    assert found["jobs"] == 200
    assert found["later"] == 0


def test_each_tenant_gets_nodes_of_the_requested_size(simulate, tmp_path: pathlib.Path) -> None:
    trace = trace_file(tmp_path / "t.csv", "".join(f"{60 * i},900,2,{'abc'[i % 3]}\n" for i in range(30)))
    found = json.loads(simulate("guarantee", trace, "--gpus", "96", "--gpus-per-node", "4", "--json"))
    assert sum(tenant["gpus"] for tenant in found["tenants"]) == 96
    assert "too few for a node for each of 3 tenants" in simulate("guarantee", trace, "--gpus", "16", status=2)
    assert "--cells" in simulate("guarantee", trace, "--gpus", "v100:32,k80:32", status=2)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["compare", POISSON, "--cache-sizes", "1TB", "--bandwidths", "1GB/s"], ["--arrivals-faster", "2"]),
        (["guarantee", POISSON], ["--node-lifetime", "1e6"]),
        (["guarantee", POISSON], ["--measure", "1-2"]),
        (["capacity", POISSON, "--most", "1TB"], ["--cache-size", "1TB"]),
        (["capacity", POISSON, "--of", "bandwidth", "--most", "1GB/s"], ["--bandwidth", "1GB/s"]),
    ],
)
def test_option_without_effect_is_refused(simulate, command: list[str], option: list[str]) -> None:
    assert option[0] in simulate(*command, *option, status=2)


@pytest.mark.decisions
def test_objectives_are_named_as_in_the_allocators_config(simulate) -> None:
    def plan(objective: str) -> dict:
        return json.loads(simulate(POISSON, "--gpus", "24", *STORAGE, "--objective", objective, "--json"))

    for objective in ("efficiency", "max-min", "throughput", "utilisation", "equal-shares"):
        assert plan(objective)["finished"] == 300
    assert plan("max-min") != plan("equal-shares")
    assert "efficiency, max-min, throughput, utilisation, equal-shares" in simulate(POISSON, "--objective", "best", status=2)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,10,1,a\n5,10,0,a\n", "line 3: a job with 0 GPUs"),
        ("0,-1,1,a\n", "line 2: a negative duration"),
        ("0,10,1\n", "line 2: 3 cells"),
    ],
)
def test_bad_rows_are_named_or_skipped(simulate, tmp_path: pathlib.Path, rows: str, said: str) -> None:
    path = trace_file(tmp_path / "bad.csv", rows)
    assert said in simulate(path, status=2)
    good = trace_file(tmp_path / "some.csv", rows + "9,10,1,a\n")
    result = json.loads(simulate(good, "--skip-bad", "--json"))
    assert result["rows_skipped"] == 1
    assert result["finished"] == result["jobs"]


def test_invalid_arguments_are_named(simulate, tmp_path: pathlib.Path) -> None:
    assert "unknown column" in simulate(trace_file(tmp_path / "t.csv", "", "submit_s,duration_s,gpus,colour"), status=2)
    assert 'policy "fifi" is unknown; did you mean fifo? Known: ' in simulate(POISSON, "--policy", "fifi", status=2)
    assert 'policy "alphabetical" is unknown; known: fifo, ' in simulate(POISSON, "--policy", "alphabetical", status=2)
    assert 'cache "lfu" is unknown; known: ' in simulate(POISSON, "--cache", "lfu", status=2)
    assert "comes from the plan" in simulate(POISSON, "--cache", "lru", "--bandwidth-rule", "joint", status=2)
    assert "TYPE:GPUS" in simulate(POISSON, "--gpus", "many", status=2)
    cells = tmp_path / "cells.toml"
    cells.write_text(OVER_COMMITTED)
    assert 'level "node" of hierarchy "h" is over-committed' in (said := simulate(POISSON, "--cells", str(cells), status=2))
    assert 'own 3 of its cells ("red" 2, "blue" 1), which is 1 more than the 2 available' in said
    second = ONE_NODE_EACH.split("[[virtual_cluster]]")[0].replace('name = "h"', 'name = "h2"\nfirst_gpu = 8')
    cells.write_text(ONE_NODE_EACH + re.sub(r'gpu_type = "[^"]*"', 'gpu_type = "other"', second))
    assert "has GPUs of two types, and simulations know only nodes of one" in simulate(
        POISSON, "--cells", str(cells), status=2
    )
    large = json.loads(simulate(trace_file(tmp_path / "large.csv", "0,10,99,a\n1,10,1,a\n"), "--gpus", "8", "--json"))
    assert (large["rejected"], large["finished"]) == (1, 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "larder simulate: give a TRACE, or one of workload, compare, capacity, guarantee; see"),
        (["--gpus", "8"], "larder simulate: give a TRACE, or one of workload, compare"),
        (["comp"], 'unknown command "comp"; did you mean `larder simulate compare`?'),
        (["comp", "trace.csv"], 'unknown command "comp"; did you mean `larder simulate compare`?'),
        (["guarante", POISSON], 'unknown command "guarante"; did you mean `larder simulate guarantee`?'),
        ([POISSON, "stray"], 'larder simulate: unexpected argument "stray"'),
        (["compare"], "larder simulate compare: TRACE is required"),
        (["workload", "stray"], 'larder simulate workload: unexpected argument "stray"'),
        ([POISSON, "--policy", "srft"], 'policy "srft" is unknown; did you mean srtf?'),
    ],
)
def test_wrong_words_are_named(simulate, words: list[str], said: str) -> None:
    assert said in simulate(*words, status=2)


def test_trace_may_follow_options(simulate) -> None:
    first = simulate("--gpus", "v100:8,p100:8", "--policy", "max-min", "poisson:20,5", "--json")
    assert json.loads(first) == json.loads(
        simulate("poisson:20,5", "--gpus", "v100:8,p100:8", "--policy", "max-min", "--json")
    )
    assert "completion time" in simulate("--gpus", "8", "poisson:20,5")


@pytest.mark.decisions
def test_sizes_of_a_table_have_one_family_of_units(simulate) -> None:
    capacity = ["capacity", POISSON, "--gpus", "24", "--bandwidth", "200MB/s", "--of", "cache", "--most"]
    compare = ["compare", POISSON, "--gpus", "24", "--bandwidths", "200MB/s", "--cache-sizes"]
    for command, size in ((capacity, "4TB"), (compare, "500GB,4TB"), ([POISSON, "--cache-size"], "500GB")):
        assert " TB" in (text := simulate(*command, size)) and "iB" not in text
    for command, size in ((capacity, "4TiB"), (compare, "500GiB,4TiB"), ([POISSON, "--cache-size"], "500GiB")):
        assert " TiB" in (text := simulate(*command, size)) and not re.search(r" [KMGT]B(?!/s)", text)


@pytest.mark.decisions
def test_results_say_what_they_measure(simulate) -> None:
    capacity = ["capacity", POISSON, "--gpus", "24", "--bandwidth", "200MB/s", "--most", "4TB"]
    text = simulate(*capacity)
    assert re.search(r"^ +CACHE  MEAN COMPLETION TIME$", text, re.MULTILINE)
    assert re.search(r"^[\d.]+ TB of cache reaches a mean completion time of \d+d \d+h$", text, re.MULTILINE)
    assert "GPU UTILISATION" in simulate(*capacity, "--metric", "utilisation")
    compare = simulate("compare", POISSON, "--cache-sizes", "1TB", "--bandwidths", "1GB/s")
    assert "MEAN JCT  P99 JCT" in compare and "JCT: the completion time of a job" in compare


def test_rejected_jobs_say_why(simulate, tmp_path: pathlib.Path) -> None:
    trace = trace_file(tmp_path / "large.csv", "0,10,99,red\n1,10,64,red\n2,10,1,red\n")
    one = trace_file(tmp_path / "one.csv", "0,10,99,red\n")
    storage = ["--cache-sizes", "1TB", "--bandwidths", "1GB/s"]
    said = "2 of 3 jobs were rejected: larger than the cluster\n"
    assert said in simulate(trace, "--gpus", "8")
    assert said in simulate("compare", trace, "--gpus", "8", *storage)
    assert said in simulate("capacity", trace, "--gpus", "8", "--most", "1TB")
    assert "1 of 1 job was rejected: larger than the cluster\n" in simulate(one, "--gpus", "8")
    assert "rejected:" not in simulate(trace, "--gpus", "104")
    cells = tmp_path / "cells.toml"
    cells.write_text(ONE_NODE_EACH)
    mixed = trace_file(tmp_path / "mixed.csv", "0,10,99,red\n1,10,16,red\n2,10,1,red\n")
    said = "2 of 3 jobs were rejected: 1 larger than the cluster, 1 larger than their tenant's cells\n"
    assert said in simulate(mixed, "--cells", str(cells))


def test_summary_is_easy_to_read(simulate, tmp_path: pathlib.Path) -> None:
    text = simulate(trace_file(tmp_path / "some.csv", "0,-1,1,a\n9,10,1,a\n"), "--skip-bad", "--gpus", "1")
    assert "with uniform+joint: 1 job on 1 GPU\n1 row was left out; the first: " in text
    assert text.count("\n\n") == 1 and "\n\n\n" not in text
    found = simulate("guarantee", POISSON)
    assert re.search(r"^- +96 +300 ", found, re.MULTILINE), "jobs without a tenant have a dash"


def test_json_may_come_before_the_command(simulate, larder_bin: pathlib.Path) -> None:
    command = [larder_bin / "larder", "--json", "simulate", POISSON, *STORAGE]
    first = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert first == json.loads(simulate(POISSON, *STORAGE, "--json"))


def test_workload_table_can_be_printed_and_used(simulate, tmp_path: pathlib.Path) -> None:
    table = tmp_path / "table.toml"
    table.write_text(simulate("workload"))
    assert json.loads(simulate(POISSON, *STORAGE, "--json")) == json.loads(
        simulate(POISSON, *STORAGE, "--workload", str(table), "--json")
    )
    table.write_text(table.read_text() + "\ncolour = 1\n")
    assert "colour" in simulate(POISSON, "--workload", str(table), status=2)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout")
@pytest.mark.parametrize("trace", ["philly_jobs.csv", "tiresias_60_job.csv"])
def test_real_traces_are_read_and_run(simulate, trace: str) -> None:
    result = json.loads(simulate(str(TRACES / trace), "--jobs", "500", "--gpus", "400", "--cache-size", "5TB",
                                 "--bandwidth", "1GB/s", "--json"))  # fmt: skip
    assert result["finished"] == result["jobs"] > 0


def test_cache_name_may_include_a_bandwidth_rule(simulate) -> None:
    rows = json.loads(simulate("compare", POISSON, "--gpus", "24", "--caches", "lru+first-come,lru,uniform+fair",
                               "--cache-sizes", "500GB", "--bandwidths", "200MB/s", "--json"))  # fmt: skip
    assert [row["cache"] for row in rows] == ["lru+first-come", "lru+fair", "uniform+fair"]
    assert rows[0]["jct_s"]["mean"] != rows[1]["jct_s"]["mean"]
    assert "comes from the plan" in simulate(POISSON, "--cache", "lru+joint", status=2)
    assert 'remote bandwidth "fairest" is unknown; known: ' in simulate(POISSON, "--cache", "lru+fairest", status=2)


@pytest.mark.decisions
@pytest.mark.parametrize(
    ("policy", "option"),
    [
        ("las", ["--promote-after", "0.1"]),
        ("astraea", ["--interval", "60"]),
        ("astraea", ["--window-intervals", "1"]),
        ("astraea", ["--starve", "60"]),
    ],
)
def test_policy_options_change_the_result(simulate, policy: str, option: list[str], tmp_path: pathlib.Path) -> None:
    rows = "".join(f"{60 * i},{900 + 977 * (i % 11)},{(1, 2, 8, 4)[i % 4]},{'aab'[i % 3]}\n" for i in range(200))
    run = [trace_file(tmp_path / "t.csv", rows), "--gpus", "16", "--policy", policy, "--json"]
    plain, changed = (json.loads(simulate(*run, *options)) for options in ([], option))
    assert plain["jct_s"] != changed["jct_s"]
    assert option[0] in simulate(*run, option[0], "0", status=2)


# The published comparisons of docs/scheduling-results.md, small enough to run at every change. They check which policy wins,
# not by how much.


@pytest.fixture
def mean_jct(simulate):
    def compare(trace: str, policies: str, *options: str) -> dict[str, dict]:
        rows = json.loads(simulate("compare", trace, "--policies", policies, "--caches", "none", "--cache-sizes", "0",
                                   "--bandwidths", "1TB/s", *options, "--json"))  # fmt: skip
        return {row["policy"]: row for row in rows}

    return compare


THROUGHPUTS = """{"simulation": {
"fast": {"1": {"v100": 40, "p100": 12, "k80": 2}}, "even": {"1": {"v100": 11, "p100": 10, "k80": 8}}}}"""


@pytest.mark.decisions
def test_gavel_gains_from_knowing_gpu_types(mean_jct, tmp_path: pathlib.Path) -> None:
    table = TRACES / "gavel_throughputs_isolated.json"
    if not table.is_file():
        table = tmp_path / "throughputs.json"
        table.write_text(THROUGHPUTS)
    rows = mean_jct("poisson:1.2,400", "max-min,max-min-agnostic", "--gpus", "v100:8,p100:8,k80:8",
                    "--throughputs", str(table))  # fmt: skip
    assert rows["max-min-agnostic"]["jct_s"]["mean"] > 1.1 * rows["max-min"]["jct_s"]["mean"]


PAIRS = """worker_type,job_a,gpus,job_b,tput_a,tput_b
v100,fast,1,even,36,9
p100,fast,1,even,10,9
p100,even,1,even,8,8
k80,even,1,even,7,7
"""


@pytest.mark.decisions
def test_gavel_gains_from_sharing_gpus(mean_jct, tmp_path: pathlib.Path) -> None:
    table, pairs = TRACES / "gavel_throughputs_isolated.json", TRACES / "gavel_throughputs_pairs.csv"
    arrivals = "gavel:1.4,400"
    if not table.is_file() or not pairs.is_file():
        table, pairs = tmp_path / "throughputs.json", tmp_path / "pairs.csv"
        arrivals = "gavel:1.8,400"  # two models make few good pairs, so sharing shows at a higher load
        table.write_text(THROUGHPUTS)
        pairs.write_text(PAIRS)
    rows = mean_jct(arrivals, "max-min,max-min-packed", "--gpus", "v100:8,p100:8,k80:8",
                    "--throughputs", str(table), "--pair-throughputs", str(pairs))  # fmt: skip
    assert rows["max-min"]["finished"] == rows["max-min-packed"]["finished"] == 400
    assert rows["max-min"]["jct_s"]["mean"] > 1.1 * rows["max-min-packed"]["jct_s"]["mean"]


def test_pair_throughputs_need_throughputs(simulate, tmp_path: pathlib.Path) -> None:
    (tmp_path / "pairs.csv").write_text(PAIRS)
    assert "--throughputs" in simulate(POISSON, "--pair-throughputs", str(tmp_path / "pairs.csv"), status=2)
    (tmp_path / "throughputs.json").write_text(THROUGHPUTS)
    (tmp_path / "pairs.csv").write_text(PAIRS.replace("k80,even,1,even,7,7", "k80,even,1,odd,7,7"))
    refused = simulate(POISSON, "--throughputs", str(tmp_path / "throughputs.json"),
                       "--pair-throughputs", str(tmp_path / "pairs.csv"), status=2)  # fmt: skip
    assert 'line 5: --throughputs has no model "odd"' in refused


@pytest.mark.decisions
def test_tiresias_beats_fifo(mean_jct, tmp_path: pathlib.Path) -> None:
    trace = TRACES / "tiresias_60_job.csv"
    path = str(trace)
    if not trace.is_file():
        rows = "".join(f"{30 * i},{(120, 90, 7200, 200)[i % 4]},{(1, 8, 4, 2)[i % 4]},a\n" for i in range(60))
        path = trace_file(tmp_path / "t.csv", rows)
    rows = mean_jct(path, "fifo,las", "--gpus", "8", "--gpus-per-node", "4")
    assert rows["las"]["finished"] == rows["fifo"]["finished"] == 60
    assert rows["fifo"]["jct_s"]["mean"] > 1.5 * rows["las"]["jct_s"]["mean"]


@pytest.mark.decisions
def test_hived_keeps_its_guarantee(simulate, tmp_path: pathlib.Path) -> None:
    trace = TRACES / "philly_jobs.csv"
    path, jobs = str(trace), 3000
    if not trace.is_file():
        jobs = 600
        rows = "".join(f"{20 * i},{300 + 61 * (i % 37)},{(1, 2, 8, 4, 16)[i % 5]},{'abcd'[i % 4]}\n" for i in range(jobs))
        path = trace_file(tmp_path / "t.csv", rows)
    found = json.loads(simulate("guarantee", path, "--jobs", str(jobs), "--gpus", "768", "--json"))
    assert found["jobs"] > 0.9 * jobs
    assert found["later"] == 0


@pytest.mark.decisions
def test_chronus_misses_fewer_deadlines(mean_jct, tmp_path: pathlib.Path) -> None:
    rows = "".join(f"{40 * i},{300 + 211 * (i % 17)},{(1, 2, 8, 4)[i % 4]},a\n" for i in range(300))
    path = trace_file(tmp_path / "t.csv", rows)
    rows = mean_jct(path, "edf,chronus", "--gpus", "104", "--deadlines", "0.9", "--lease", "60")
    assert rows["edf"]["deadlines"] > 200
    assert rows["chronus"]["deadlines_missed"] < rows["edf"]["deadlines_missed"]


@pytest.mark.decisions
def test_chronus_misses_no_more_than_others_on_its_trace(simulate, mean_jct, tmp_path: pathlib.Path) -> None:
    trace = TRACES / "philly_jobs.csv"
    path, jobs, gpus = str(trace), 1500, 48
    if not trace.is_file():
        rows = "".join(f"{797 * i},{1200 + 463 * (i * i % 71)},{(1, 2, 8, 4, 1)[i % 5]},a\n" for i in range(1500))
        path, gpus = trace_file(tmp_path / "t.csv", rows), 56
    rows = mean_jct(f"chronus:{path},{jobs}", "chronus,edf,srtf", "--gpus", str(gpus), "--lease", "600")
    chronus = rows["chronus"]
    assert 0.25 * jobs < chronus["strict_deadlines"] < 0.35 * jobs
    for other in (rows["edf"], rows["srtf"]):
        assert chronus["strict_missed"] <= other["strict_missed"]
        assert chronus["deadline_value"] >= other["deadline_value"]
    table = simulate("compare", f"chronus:{path},60", "--gpus", "96", "--caches", "none", "--cache-sizes", "0",
                     "--bandwidths", "1TB/s")  # fmt: skip
    assert "STRICT" in table and "VALUE" in table and re.search(r"\d+ of \d+", table)
    assert "fewer than 90000" in simulate(f"chronus:{path},90000", status=2)


def test_lost_node_takes_its_job_to_another(simulate, tmp_path: pathlib.Path) -> None:
    trace = trace_file(tmp_path / "trace.csv", "0,1000,8,one\n0,1000,8,one\n")
    jobs = tmp_path / "jobs.csv"
    simulate(trace, "--gpus", "16", "--lose-node", "v100-1@500", "--jobs-csv", str(jobs))
    with jobs.open() as rows:
        ended = {row["failures"]: float(row["finish_s"]) for row in csv.DictReader(rows)}
    assert ended == {"0": pytest.approx(1000, abs=1), "1": pytest.approx(2060, abs=1)}  # it starts again after a minute
    assert "the nodes are v100-0 to v100-1" in simulate(trace, "--gpus", "16", "--lose-node", "v100-2@500", status=2)
    assert "is not NODE@SECONDS" in simulate(trace, "--gpus", "16", "--lose-node", "v100-1", status=2)
