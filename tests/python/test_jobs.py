"""Submitted jobs from end to end: `larder job` against a real larder-allocator that runs them as processes."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import page
import pytest
from allocator_process import Allocator, node_report, reporting

CELLS = """
[[hierarchy]]
name = "box"
gpu_type = "gpu"
levels = [{ name = "pair", of = 2 }, { name = "box", of = 2 }]
node = "box"
nodes = ["n1"]

[[virtual_cluster]]
name = "red"
cells = [{ hierarchy = "box", level = "pair", count = 1 }]

[[virtual_cluster]]
name = "blue"
cells = [{ hierarchy = "box", level = "pair", count = 1 }]
"""


class Cluster:
    """An allocator that runs jobs. `larder` runs a user's commands in `directory`."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, *options: str) -> None:
        self.programs = programs
        self.directory = directory
        self.allocator = Allocator(programs, directory, "--scheduler.directory", str(directory / "jobs"), *options)

    def try_larder(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.programs / "larder", "--allocator", self.allocator.socket, *map(str, arguments)],
            capture_output=True, text=True, cwd=self.directory,
        )  # fmt: skip

    def larder(self, *arguments: object) -> str:
        ran = self.try_larder(*arguments)
        assert ran.returncode == 0, f"larder {arguments}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def submit(self, *options: object, script: str) -> int:
        answer = self.larder("--json", "job", "submit", *options, "--", "sh", "-c", script)
        return json.loads(answer)["jobs"][0]["id"]

    def job(self, job: object) -> dict:
        return json.loads(self.larder("--json", "job", "show", job))

    def wait(self, job: object, state: str) -> dict:
        while (seen := self.job(job))["state"] != state:
            time.sleep(0.02)
        return seen

    def wait_for(self, file: str) -> None:
        while not (self.directory / file).exists():
            time.sleep(0.01)


@pytest.fixture
def start_cluster(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Callable[..., Cluster]]:
    started: list[Cluster] = []

    def start(*options: str) -> Cluster:
        started.append(Cluster(larder_bin, tmp_path, *options))
        return started[-1]

    yield start
    try:
        for cluster in started:
            if not cluster.allocator.runs():
                continue
            for job in json.loads(cluster.larder("--json", "jobs", "--queue"))["jobs"]:
                cluster.try_larder("job", "cancel", job["id"])
            ends_by = time.monotonic() + 60
            while json.loads(cluster.larder("--json", "jobs", "--queue"))["jobs"] and time.monotonic() < ends_by:
                time.sleep(0.02)
            assert cluster.allocator.end() == 0, cluster.allocator.log.read_text()
    finally:
        for cluster in started:
            cluster.allocator.kill()
        kill_runners(tmp_path)


def runners(directory: pathlib.Path) -> list[int]:
    """The processes that run jobs of a cluster in `directory`."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # the process has just ended
            continue
        if "larder-runner" in command.split(" ")[0] and str(directory) in command:
            found.append(int(process.name))
    return found


def session_of(leader: int) -> list[int]:
    """The processes of the session, its leader excluded, parents first."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
        except OSError:
            continue
        if session == leader and int(process.name) != leader:
            found.append(int(process.name))
    return sorted(found)


def send(process: int, what: signal.Signals) -> None:
    try:
        os.kill(process, what)
    except ProcessLookupError:  # it has just ended
        pass


def kill_runners(directory: pathlib.Path) -> None:
    """Kills the runners that still run jobs of a cluster in `directory`, with all their processes. Returns once they are
    gone: a runner writes how its job has ended."""
    while left := runners(directory):
        for runner in left:
            for process in [*session_of(runner), runner]:
                send(process, signal.SIGKILL)
        time.sleep(0.01)


def test_job_can_be_followed_from_submission_to_history(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "4")
    said = cluster.larder(
        "job", "submit", "--gpus", "2", "--name", "resnet", "--env", "SEED=7", "--",
        "sh", "-c", 'echo "$LARDER_JOB $LARDER_GPUS $CUDA_VISIBLE_DEVICES $SEED $PWD"; touch runs; while [ ! -e end ]; do sleep 0.01; done',
    )  # fmt: skip
    assert said == "job 1 (resnet) is submitted\n"
    cluster.wait_for("runs")
    waits = cluster.submit("--gpus", "4", "--name", "wide", script="exit 3")
    cluster.wait("resnet", "running")
    assert "resnet" in cluster.larder("jobs", "--queue")
    while "needs 4 GPUs at once, and 2 GPUs of 4 are free" not in (why := cluster.larder("job", "why", "wide")):
        time.sleep(0.02)
    assert "(wide) has waited" in why
    assert "held by 1 (resnet): 2 GPUs" in why
    assert json.loads(cluster.larder("--json", "job", "why", "wide"))["binding"] == "gpus"
    (cluster.directory / "end").touch()
    shown = cluster.wait("resnet", "succeeded")
    assert pathlib.Path(shown["output"]).read_text() == f"resnet 2 0,1 7 {cluster.directory}\n"
    assert cluster.wait(waits, "failed")["exit_code"] == 3
    history = cluster.larder("jobs", "--history")
    assert history.index("wide") < history.index("resnet")
    assert [job["name"] for job in json.loads(cluster.larder("--json", "jobs", "--history", "--limit", 1))["jobs"]] == ["wide"]
    assert "submitted by tenant default" in cluster.larder("job", "show", "resnet")
    events = cluster.larder("events")
    for kind in ("job_submitted", "job_started", "job_ended"):
        assert kind in events
    metrics = cluster.allocator.ask("GET", "/metrics").body.decode()
    assert 'larder_queue_ended_total{state="succeeded"} 1' in metrics
    assert 'larder_queue_ended_total{state="failed"} 1' in metrics


def test_submissions_in_policies_page_fit_its_config_file(
    start_cluster: Callable[..., Cluster], repository: pathlib.Path, larder_bin: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    policies = repository / "docs" / "policies.md"
    (file,) = ["\n".join(lines) for _, lines in page.blocks(policies) if lines[0].startswith("state = ")]
    (tmp_path / "allocator.toml").write_text(file.replace('state = "/var/lib/larder-allocator"\n', ""))
    cluster = start_cluster("--config", str(tmp_path / "allocator.toml"))
    for program in ("train.py", "finetune.py", "evaluate.py", "sweep.py"):
        (tmp_path / program).write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "prepare.sh").write_text("sleep 600\n")
    steps = page.commands(policies)
    steps = steps[1 + next(i for i, step in enumerate(steps) if step.text == "kill %1") :]
    assert len(steps) >= 9
    with contextlib.ExitStack() as stack:
        for name in ("imagenet", "pets"):
            report = node_report(name)
            report["datasets"] = [report["datasets"][0] | {"name": name}]
            stack.enter_context(reporting(cluster.allocator, report | {"jobs": []}))
        for step, ran in page.run(steps, tmp_path, larder_bin, LARDER_ALLOCATOR=str(cluster.allocator.socket)).items():
            assert ran.status == 0, f"line {step.line}: {step.text}\n{ran.output}"
    assert len(json.loads(cluster.larder("--json", "jobs", "--queue"))["jobs"]) == 9


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--gpus", "5", "--", "true"], 1, "it asks for 5 GPUs, but the cluster has 4"),
        (["--tenant", "ghost", "--", "true"], 4, 'tenant "ghost" is unknown; known: default'),
        (["--dataset", "lost", "--", "true"], 4, 'dataset "lost" is unknown'),
        (["--after", "nobody", "--", "true"], 4, 'there is no job "nobody" to wait for'),
        (["--name", "a", "--after", "a", "--", "true"], 2, "in a circle: a after a"),
        (["--deadline", "tomorrow", "--", "true"], 2, 'is not a time: expected "+2h"'),
        (["--deadline", "2001-01-01 00:00", "--", "true"], 2, "is over already"),
        (["--service", "strict", "--", "true"], 2, "about a deadline, but none is given"),
        (["--env", "NOT_SET", "--", "true"], 2, "--env: the variable NOT_SET is not set; give --env NOT_SET=VALUE"),
        (["--env", "=1", "--", "true"], 2, '--env: "=1" names no variable'),
        ([], 2, "needs a COMMAND, or else --file"),
    ],
)  # fmt: skip
def test_invalid_submission_is_refused_with_its_reason(
    start_cluster: Callable[..., Cluster], arguments: list[str], code: int, says: str
) -> None:
    cluster = start_cluster("--scheduler.gpus", "4")
    ran = cluster.try_larder("job", "submit", *arguments)
    assert says in ran.stderr
    assert ran.returncode == code, ran.stderr
    assert "no jobs wait or run" in cluster.larder("jobs", "--queue")


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_words_after_the_command_belong_to_it(start_cluster: Callable[..., Cluster], separator: list[str]) -> None:
    cluster = start_cluster("--scheduler.gpus", "4")
    cluster.larder("job", "submit", "--name", "prints", *separator, "echo", "--gpus", "2", "--", "-n", "status")
    shown = cluster.wait("prints", "succeeded")
    assert shown["command"] == ["echo", "--gpus", "2", "--", "-n", "status"]
    assert shown["gpus"] == 1
    assert cluster.larder("job", "logs", "prints") == "--gpus 2 -- -n status\n"


def test_env_passes_on_a_variable_that_is_set(
    start_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = start_cluster("--scheduler.gpus", "1")
    monkeypatch.setenv("SEED", "7")
    monkeypatch.setenv("EMPTY", "")
    cluster.submit("--name", "seeded", "--env", "SEED", "--env", "EMPTY", script='echo "$SEED, ${EMPTY-unset}"')
    cluster.wait("seeded", "succeeded")
    assert cluster.larder("job", "logs", "seeded") == "7, \n"


def test_history_has_a_dash_for_a_job_that_never_ran(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "1")
    cluster.submit("--name", "first", script="while :; do sleep 0.01; done")
    cluster.wait("first", "running")
    cluster.submit("--name", "second", script="true")
    cluster.larder("job", "cancel", "second")
    cluster.wait("second", "cancelled")
    heading, row = cluster.larder("jobs", "--history").splitlines()
    ran_ends = heading.index("RAN") + len("RAN")
    assert row[:ran_ends].endswith("   -")


def test_paths_of_outputs_are_absolute(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    process = subprocess.Popen(
        [larder_bin / "larder-allocator", "--state", "demo", "--remote-bandwidth", "1GB/s", "--scheduler.gpus", "1"],
        cwd=tmp_path, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:

        def larder(*arguments: str) -> str:
            command = [larder_bin / "larder", "--allocator", "demo/allocator.sock", *arguments]
            return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

        while "no jobs wait" not in larder("jobs", "--queue"):
            assert process.poll() is None
            time.sleep(0.02)
        script = "echo begun; while [ ! -e end ]; do sleep 0.01; done"
        assert "submitted" in larder("job", "submit", "--name", "one", "--", "sh", "-c", script)
        while "running" not in larder("jobs", "--queue") or larder("job", "logs", "one") != "begun\n":
            time.sleep(0.02)
        output = json.loads(larder("--json", "job", "show", "one"))["output"]
        assert output.startswith(f"{tmp_path}/demo/jobs/") and pathlib.Path(output).read_text() == "begun\n"
        assert f"Its output is in {output}." in larder("job", "why", "one")
        (tmp_path / "end").touch()
        while "succeeded" not in larder("jobs", "--history"):
            time.sleep(0.02)
    finally:
        process.terminate()
        process.wait()
        kill_runners(tmp_path)


def test_jobs_of_one_file_are_submitted_all_or_none(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "1")
    touch = [{"name": f"step-{i}", "command": ["sh", "-c", f"echo {i} >> order"]} for i in range(3)]
    touch[0]["after"], touch[1]["after"] = ["step-1"], ["step-2"]
    file = cluster.directory / "jobs.json"
    file.write_text(json.dumps({"jobs": touch}))
    cluster.larder("job", "submit", "--file", file)
    cluster.wait("step-0", "succeeded")
    assert (cluster.directory / "order").read_text() == "2\n1\n0\n"
    touch[2]["after"] = ["step-0"]
    file.write_text(json.dumps({"jobs": touch}))
    ran = cluster.try_larder("job", "submit", "--file", file)
    assert ran.returncode == 2
    assert "in a circle: step-0 after step-1 after step-2 after step-0" in ran.stderr


def test_shorter_job_preempts_and_longer_one_resumes(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "2", "--scheduler.policy", "srtf")
    forever = 'echo "$LARDER_ATTEMPT" >> starts; trap "echo saved >> starts; exit 0" TERM; touch runs; while :; do sleep 0.01; done'
    common = ("--gpus", "2", "--dataset", "images")
    with reporting(cluster.allocator, node_report()):
        slow = cluster.submit(*common, "--epochs", "100", "--name", "slow", script=forever)
        cluster.wait_for("runs")
        cluster.submit(*common, "--epochs", "1", "--name", "quick", script="echo quick >> starts")
        cluster.wait("quick", "succeeded")
    while (cluster.directory / "starts").read_text().split() != ["1", "saved", "quick", "2"]:
        time.sleep(0.02)
    shown = cluster.wait(slow, "running")
    assert (shown["attempt"], shown["preemptions"]) == (2, 1)
    assert any("preempted: policy srtf puts other jobs first" in entry["text"] for entry in shown["log"])


def test_elastic_job_gets_idle_gpus(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "4", "--scheduler.policy", "srtf")
    elastic = cluster.submit(
        "--gpus", "1", "--gpus-max", "4", "--name", "elastic",
        script='trap "exit 0" TERM; touch runs-on-$LARDER_GPUS; while :; do sleep 0.01; done',
    )  # fmt: skip
    assert cluster.wait(elastic, "running")["holds"]["gpus"] == 4
    cluster.wait_for("runs-on-4")
    row = next(line for line in cluster.larder("jobs", "--queue").splitlines() if "elastic" in line)
    assert row.split()[:5] == ["1", "elastic", "running", "default", "4"]


def test_submission_states_what_policies_cannot_measure(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "4")
    job = cluster.submit(
        "--gpus", "1", "--gpus-max", "3", "--scaling", "1,1.7,2.1", "--rate-by-nodes", "1,0.9", "--restart-cost", "5",
        "--weight", "2", "--packed-rate", "0.6", "--gpu-memory-part", "0.4",
        script="sleep 60",
    )  # fmt: skip
    shown = cluster.wait(job, "running")
    said = {"scaling": [1, 1.7, 2.1], "rate_by_nodes": [1, 0.9], "restart_s": 5, "weight": 2, "packed_rate": 0.6, "gpu_memory_part": 0.4}
    assert {key: shown[key] for key in said} == said
    refused = cluster.try_larder("job", "submit", "--gpus", "2", "--scaling", "1,2", "--", "true")
    assert refused.returncode == 2 and "from gpus_min to gpus_max" in refused.stderr


def test_submission_says_where_its_gang_may_lie(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    cells = tmp_path / "cells.toml"
    cells.write_text(
        """[[hierarchy]]
name = "h"
gpu_type = "a100"
levels = [{ name = "node", of = 4 }]
node = "node"
nodes = ["box"]

[[virtual_cluster]]
name = "default"
pinned = [{ name = "fast", hierarchy = "h", level = "node", node = "box" }]
"""
    )
    cluster = start_cluster("--scheduler.cells", str(cells))
    job = cluster.submit(
        "--pods", "2,1", "--hierarchy", "h", "--together", "node", "--cell", "fast",
        script='echo "$LARDER_PODS" > pods; sleep 60',
    )  # fmt: skip
    shown = cluster.wait(job, "running")
    said = {"gpus": 3, "pods": [2, 1], "hierarchy": "h", "together": "node", "cell": "fast"}
    assert {key: shown[key] for key in said} == said
    cluster.wait_for("pods")
    refused = cluster.try_larder("job", "submit", "--cell", "slow", "--", "true")
    assert refused.returncode != 0 and 'pinned cell "slow" is unknown; known: fast' in refused.stderr
    refused = cluster.try_larder("job", "submit", "--pods", "3,2", "--", "true")
    assert refused.returncode != 0 and "GPUs" in refused.stderr


def test_jobs_keep_running_when_the_daemon_ends(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    first = start_cluster("--scheduler.gpus", "1")
    job = first.submit("--name", "long", script="echo start >> starts; while [ ! -e end ]; do sleep 0.01; done")
    first.wait_for("starts")
    assert first.allocator.end() == 0
    (tmp_path / "end").touch()
    second = start_cluster("--scheduler.gpus", "1")
    second.wait(job, "succeeded")
    assert (tmp_path / "starts").read_text() == "start\n"


def test_lost_queue_is_reported_even_without_its_numbers(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    first = start_cluster("--scheduler.gpus", "1")
    first.wait(first.submit("--name", "quick", script="exit 0"), "succeeded")
    assert first.allocator.end() == 0
    (numbers,) = tmp_path.rglob("job-numbers")
    shutil.rmtree(numbers.parent / "queue")
    numbers.unlink()
    second = start_cluster("--scheduler.gpus", "1")
    assert "the queue of this directory is lost" in second.allocator.log.read_text()


def test_job_of_a_lost_queue_leaves_its_gpu_to_others(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    first = start_cluster("--scheduler.gpus", "1")
    first.submit("--name", "old", script='trap "touch asked; exit 0" TERM; touch runs; while :; do sleep 0.01; done')
    first.wait_for("runs")
    first.allocator.kill()
    (queue,) = (numbers.parent / "queue" for numbers in tmp_path.rglob("job-numbers"))
    shutil.rmtree(queue)
    second = start_cluster("--scheduler.gpus", "1")
    second.wait_for("asked")
    second.wait(second.submit("--name", "new", script="exit 0"), "succeeded")


def test_restarted_allocator_logs_the_remote_bandwidth_in_force(
    start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path
) -> None:
    options = ("--scheduler.gpus", "1", "--state", str(tmp_path / "state"))
    first = start_cluster(*options)
    first.larder("remote", "set", "--bandwidth", "80 MB/s")
    assert first.allocator.end() == 0
    second = start_cluster(*options)
    lines = [line for line in second.allocator.log.read_text().splitlines() if " allocating " in line]
    assert 'remote="80.00 MB/s"' in lines[-1]


@pytest.mark.parametrize("on_term", ["exit 0", "-"], ids=["traps TERM", "dies of TERM"])
def test_job_stopped_with_the_whole_unit_waits_again(
    start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path, on_term: str
) -> None:
    """A service manager or a machine that shuts down sends SIGTERM to all processes, in any order."""
    first = start_cluster("--scheduler.gpus", "1")
    script = f"trap '{on_term}' TERM; echo $LARDER_ATTEMPT >> starts; while :; do sleep 0.01; done"
    job = first.submit("--name", "long", script=script)
    first.wait_for("starts")
    first.wait(job, "running")
    (runner,) = runners(tmp_path)
    first.allocator.kill()
    send(runner, signal.SIGSTOP)  # the runner waits for its own signal only so long
    for process in [*reversed(session_of(runner)), runner]:
        send(process, signal.SIGTERM)
    send(runner, signal.SIGCONT)
    while runners(tmp_path):
        time.sleep(0.01)
    second = start_cluster("--scheduler.gpus", "1")
    while (shown := second.job(job))["attempt"] == 1 and shown["state"] not in ("succeeded", "failed"):
        time.sleep(0.02)
    assert (shown["attempt"], shown["preemptions"]) == (2, 0), shown["log"]
    while (tmp_path / "starts").read_text() != "1\n2\n":
        time.sleep(0.02)
    assert any("stopped from outside" in entry["text"] for entry in shown["log"])


def test_job_that_ends_while_the_daemon_is_down_keeps_its_verdict(
    start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path
) -> None:
    first = start_cluster("--scheduler.gpus", "2")
    jobs = {
        code: first.submit("--name", f"exits-{code}", script=f"touch runs-{code}; while [ ! -e end ]; do sleep 0.01; done; exit {code}")
        for code in (0, 3)
    }
    for code in jobs:
        first.wait_for(f"runs-{code}")
    first.allocator.kill()
    (tmp_path / "end").touch()
    while runners(tmp_path):
        time.sleep(0.01)
    second = start_cluster("--scheduler.gpus", "2")
    assert second.wait(jobs[0], "succeeded")["attempt"] == 1
    assert second.wait(jobs[3], "failed")["exit_code"] == 3


def test_detached_process_ends_before_the_next_attempt(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    """The process has left its session and its parent, and its runner is killed."""
    cluster = start_cluster("--scheduler.gpus", "1")
    if "cannot give attempts of jobs control groups" in cluster.allocator.log.read_text():
        pytest.skip("no control group is writable here")
    detach = "(setsid sh -c 'echo $$ > pid-new; mv pid-new pid-'$LARDER_ATTEMPT'; while [ ! -e end ]; do sleep 0.01; done' &)"
    cluster.submit("--name", "forks", script=f"{detach}; while [ ! -e end ]; do sleep 0.01; done")
    try:
        cluster.wait_for("pid-1")
        cluster.wait("forks", "running")
        (runner,) = runners(tmp_path)
        os.kill(runner, signal.SIGKILL)
        cluster.wait_for("pid-2")
        detached = pathlib.Path("/proc") / (tmp_path / "pid-1").read_text().strip()
        assert not detached.exists() or ") Z " in (detached / "stat").read_text()
    finally:
        (tmp_path / "end").touch()


def wrapped(programs: pathlib.Path, directory: pathlib.Path, how: str) -> pathlib.Path:
    """Programs of which larder-allocator is started by the shell command `how`."""
    if subprocess.run(["sh", "-c", f"{how} true"], capture_output=True).returncode != 0:
        pytest.skip(f"not allowed here: {how}")
    directory.mkdir()
    (directory / "larder").symlink_to(programs / "larder")
    wrapper = directory / "larder-allocator"
    wrapper.write_text(f'#!/bin/sh\n{how} {programs / "larder-allocator"} "$@"\n')
    wrapper.chmod(0o755)
    return directory


def test_allocator_without_control_groups_warns_and_runs_jobs(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    hide = """exec unshare --mount sh -c 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"' sh"""
    cluster = Cluster(wrapped(larder_bin, tmp_path / "bin", hide), tmp_path, "--scheduler.gpus", "1")
    try:
        assert cluster.allocator.log.read_text().count("cannot give attempts of jobs control groups") == 1
        status = json.loads(cluster.allocator.ask("GET", "/v1/status").body)
        assert "cannot give attempts of jobs control groups" in status["warning"]
        job = cluster.submit("--name", "quick", script="(setsid sleep 1000 &); exit 0")
        shown = cluster.wait(job, "succeeded")
        assert pathlib.Path(shown["output"]).read_text() == ""
    finally:
        cluster.allocator.end()
        kill_runners(tmp_path)


def test_allocator_in_a_services_sandbox_warns(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sandbox = "INVOCATION_ID=1 exec setpriv --no-new-privs"
    cluster = Cluster(wrapped(larder_bin, tmp_path / "bin", sandbox), tmp_path, "--scheduler.gpus", "1")
    try:
        assert cluster.allocator.log.read_text().count("jobs inherit the sandbox of this service") == 1
    finally:
        cluster.allocator.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
def test_users_manage_only_their_own_jobs(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    cluster = start_cluster("--scheduler.gpus", "2", "--socket_mode", "0666")
    for directory in (tmp_path, *tmp_path.parents):
        directory.chmod(directory.stat().st_mode | 0o711)

    def as_user(user: int, *arguments: object) -> subprocess.CompletedProcess[str]:
        words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", cluster.programs / "larder"]
        return subprocess.run(
            [*words, "--allocator", cluster.allocator.socket, *map(str, arguments)], capture_output=True, text=True, cwd="/"
        )

    submitted = as_user(65534, "--json", "job", "submit", "--name", "own", "--", "sh", "-c", "echo secret; exec sleep 1000")
    assert submitted.returncode == 0, submitted.stderr
    cluster.wait("own", "running")
    for command in (("cancel", "own"), ("logs", "own")):
        refused = as_user(65533, "job", *command)
        assert refused.returncode == 5 and "belongs to another user" in refused.stderr, refused
    output = cluster.job("own")["output"]
    reads = {user: subprocess.run(["setpriv", f"--reuid={user}", "--clear-groups", "cat", output]).returncode for user in (65534, 65533)}
    assert reads == {65534: 0, 65533: 1}, "no other user reads the file itself either"
    assert cluster.job("own")["state"] == "running"
    assert as_user(65534, "job", "cancel", "own").returncode == 0
    cluster.wait("own", "cancelled")


def test_cells_give_tenants_their_own_gpus(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    cells = tmp_path / "cells.toml"
    cells.write_text(CELLS)
    cluster = start_cluster(
        "--scheduler.policy", "tenant-fifo", "--scheduler.cells", str(cells),
        "--scheduler.tenant.red.weight", "1", "--scheduler.tenant.blue.weight", "1",
    )
    cluster.submit("--tenant", "red", "--gpus", "2", "--name", "reds", script="while :; do sleep 0.01; done")
    cluster.wait("reds", "running")
    more = cluster.submit("--tenant", "red", "--gpus", "2", "--name", "more", script="true")
    cluster.submit("--tenant", "blue", "--gpus", "2", "--name", "blues", script="while :; do sleep 0.01; done")
    cluster.wait("blues", "running")
    assert cluster.job(more)["state"] == "waiting"
    cluster.larder("job", "cancel", "reds")
    cluster.wait(more, "succeeded")


def test_opportunistic_job_uses_others_cells_and_yields(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    cells = tmp_path / "cells.toml"
    cells.write_text(CELLS)
    cluster = start_cluster(
        "--scheduler.cells", str(cells), "--scheduler.tenant.red.weight", "1", "--scheduler.tenant.blue.weight", "1"
    )
    ran = cluster.try_larder("job", "submit", "--tenant", "red", "--gpus", "4", "--", "true")
    assert ran.returncode == 1
    assert 'asks for 4 GPUs, but tenant "red" has a claim to 2 of one type' in ran.stderr
    refused = cluster.try_larder("job", "submit", "--tenant", "red", "--opportunistic", "--no-preempt", "--", "true")
    assert refused.returncode == 2
    assert "it must be preemptible" in refused.stderr
    guest = cluster.submit(
        "--tenant", "red", "--gpus", "4", "--name", "guest", "--opportunistic",
        script='echo "$LARDER_ATTEMPT" >> starts; trap "exit 0" TERM; while [ ! -e end ]; do sleep 0.01; done',
    )  # fmt: skip
    shown = cluster.wait(guest, "running")
    assert (shown["opportunistic"], shown["holds"]["opportunistic"], shown["holds"]["gpus"]) == (True, True, 4)
    cluster.wait_for("starts")
    owner = cluster.submit("--tenant", "blue", "--gpus", "2", "--name", "owner", script="while [ ! -e go ]; do sleep 0.01; done")
    assert cluster.wait(owner, "running")["holds"]["opportunistic"] is False
    shown = cluster.wait(guest, "waiting")
    assert any("it has no claim to its GPUs, and others need them" in entry["text"] for entry in shown["log"])
    assert "4 GPUs that no job with a claim uses" in cluster.larder("job", "why", guest)
    (cluster.directory / "go").touch()
    cluster.wait(owner, "succeeded")
    while (cluster.directory / "starts").read_text().split() != ["1", "2"]:
        time.sleep(0.02)
    (cluster.directory / "end").touch()
    cluster.wait(guest, "succeeded")


def test_signal_to_the_daemons_group_spares_jobs(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "1")
    cluster.submit("--name", "long", script='echo $$ > started; mv started pid; while :; do sleep 0.01; done')
    cluster.wait_for("pid")
    stat = pathlib.Path(f"/proc/{(cluster.directory / 'pid').read_text().strip()}/stat").read_text()
    session = int(stat.rsplit(")", 1)[1].split()[3])
    assert session != int(pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[3])
    cluster.larder("job", "cancel", "long")
    assert cluster.wait("long", "cancelled")["exit_signal"] == signal.SIGTERM


def test_logs_show_latest_attempt_and_follow_to_its_end(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.gpus", "1")
    job = cluster.submit("--name", "talks", script="echo one; echo two >&2; while [ ! -e go ]; do sleep 0.01; done; echo three")
    cluster.wait(job, "running")
    while cluster.larder("job", "logs", "talks") != "one\ntwo\n":
        time.sleep(0.02)
    follower = subprocess.Popen(
        [cluster.programs / "larder", "--allocator", cluster.allocator.socket, "job", "logs", "-f", str(job)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert follower.stdout is not None
    assert follower.stdout.readline() == "one\n"
    waiting = cluster.submit("--name", "waits", script="true")
    shown = cluster.try_larder("job", "logs", waiting)
    assert (shown.returncode, shown.stdout) == (0, "")
    assert f"job {waiting} (waits) has not started: it is waiting" in shown.stderr
    (cluster.directory / "go").touch()
    assert follower.stdout.read() == "two\nthree\n"
    assert follower.wait(60) == 0
    refused = cluster.try_larder("job", "logs", "nobody")
    assert refused.returncode == 4 and "nobody" in refused.stderr


def test_drained_node_takes_no_job_until_it_is_taken_back(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--scheduler.node.n1.gpus", "2", "--scheduler.node.n2.gpus", "2")
    until_end = "while [ ! -e end ]; do sleep 0.01; done"
    cluster.wait(cluster.submit("--name", "first", "--gpus", 2, script=until_end), "running")
    (node,) = {place["node"] for place in cluster.job("first")["holds"]["placement"]}
    other = {"n1": "n2", "n2": "n1"}[node]
    assert cluster.larder("node", "drain", node) == f"{node} is drained: 1 job runs there still\n"
    assert cluster.larder("node", "drain", other) == f"{other} is drained: no job runs there\n"
    waits = cluster.submit("--name", "waits", "--gpus", 2, script="true")
    while "4 are on 2 drained nodes (n1, n2)" not in cluster.larder("job", "why", waits):
        time.sleep(0.02)
    rows = {row.split()[0]: row for row in cluster.larder("node", "ls", "--gpus").splitlines()}
    assert " ".join(rows[node].split()[1:8]) == "gpu 2 0 1 drained by local", rows
    assert json.loads(cluster.larder("--json", "node", "drain", node))["jobs"] == 1
    (cluster.directory / "end").touch()
    cluster.wait("first", "succeeded")
    assert cluster.job(waits)["state"] == "waiting", "a drained node stays drained"
    assert cluster.larder("node", "undrain", node) == f"{node} takes jobs again\n"
    held = cluster.wait(waits, "succeeded")
    assert f"2 GPUs of {node}" in json.dumps(held["log"])
    again = cluster.try_larder("node", "undrain", node)
    assert (again.returncode, f'node "{node}" is not drained' in again.stderr) == (4, True), again.stderr
    unknown = cluster.try_larder("node", "drain", "n9")
    assert (unknown.returncode, "larder node ls --gpus lists the nodes" in unknown.stderr) == (4, True), unknown.stderr


def test_allocator_without_jobs_says_who_drains_nodes(larder_bin: pathlib.Path, tmp_path: pathlib.Path) -> None:
    allocator = Allocator(larder_bin, tmp_path)
    command = [larder_bin / "larder", "--allocator", allocator.socket, "node", "drain", "n1"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1 and "scontrol update" in refused.stderr and "kubectl cordon" in refused.stderr
    assert allocator.end() == 0


def test_first_start_logs_no_warning(start_cluster: Callable[..., Cluster], tmp_path: pathlib.Path) -> None:
    cluster = start_cluster("--scheduler.gpus", "1", "--state", str(tmp_path / "state"))
    log = cluster.allocator.log.read_text()
    assert "no leases are on record" in log
    assert [line for line in log.splitlines() if "info" not in line] == []
