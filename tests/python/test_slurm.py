"""Slurm places jobs and Larder follows, on a real Slurm with a real allocator, daemon and loader: docs/slurm.md."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from allocator_process import Allocator
from conftest import Daemon, write_tree
from servers import ServerProgram

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a Slurm for several users")
USERS = {"nobody": 65534, "daemon": 1}  # root may not use burst buffers
NODE = "n1"
# Reads an epoch as a training job does, and says under which name.
READ = """\
import os, larder
with larder.Loader(os.environ["LARDER_DATASET"], batch_size=16, memory_budget="24MiB") as loader:
    size = sum(sample.bytes.nbytes for batch in loader for sample in batch)
    print(os.environ["LARDER_JOB"], size, loader.statistics().remote_bytes, flush=True)
"""


def write_etc(directory: pathlib.Path, scripts: pathlib.Path, programs: pathlib.Path, config: pathlib.Path) -> pathlib.Path:
    """The files of /etc/slurm that an administrator writes: docs/slurm.md."""
    etc = directory / "etc"
    etc.mkdir()
    (etc / "burst_buffer.lua").symlink_to(scripts / "burst_buffer.lua")
    (etc / "burst_buffer.conf").write_text("Directive=BB_LUA\nStageInTimeout=600\n")
    lines = "BurstBufferType=burst_buffer/lua\n"
    for name in ("prolog", "epilog"):
        script = directory / name  # slurmd gives it an environment of its own
        script.write_text(
            f"#!/bin/sh\nexport LARDER_SLURM={programs}/larder-slurm LARDER_SLURM_CONFIG={config}\nexec {scripts / name}\n"
        )
        script.chmod(0o755)
        lines += f"{name.capitalize()}={script}\n"
    (etc / "job_submit.lua").symlink_to(scripts / "job_submit.lua")
    lines += "JobSubmitPlugins=lua\nLicenses=remoteio:100000,other:4\n"
    (etc / "slurm.conf").write_text(lines)
    return etc


class Cluster:
    """One Slurm of eight nodes, an allocator and one node's daemon. All users reach their sockets."""

    def __init__(self, programs: pathlib.Path, repository: pathlib.Path, directory: pathlib.Path) -> None:
        self.directory = directory
        self.programs = programs
        self.config = directory / "slurm.toml"
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as started:
            started.callback(self.stop)
            self._start(repository, directory)
            started.pop_all()

    def _start(self, repository: pathlib.Path, directory: pathlib.Path) -> None:
        programs = self.programs
        self.start_allocator()
        # Slurm ends before the allocator that now runs: the teardown of its jobs waits for one.
        self._stack.callback(lambda: self.allocator.kill())
        socket = self.allocator.socket
        self.daemon = Daemon(
            programs, directory / "node", "--socket-mode", "0666",
            "--allocator.endpoint", str(socket), "--allocator.node", NODE, "--allocator.gpus", "2",
        )  # fmt: skip
        self._stack.callback(self.daemon.end)
        self.daemon.start()
        # A busy machine takes longer to start a program than slurmctld should wait for one.
        self.config.write_text(
            f'socket = "{self.daemon.socket}"\nlimit = "10 s"\n[allocator]\nendpoint = "{socket}"\n'
        )
        self.contents = {}
        for name in ("images", "texts"):
            self.contents[name], _ = write_tree(directory / name, 300, seed=3)
            self.daemon.command("dataset", "add", name, directory / name, "--format", "raw", "--mode", "0444")
        self.until(lambda: len(self.datasets()) == 2)
        (directory / "slurm").mkdir()
        (directory / "jobs").mkdir()
        (directory / "jobs").chmod(0o1777)
        etc = write_etc(directory, repository / "scheduler" / "engines" / "slurm", programs, self.config)
        environment = {"LARDER_SLURM": str(programs / "larder-slurm"), "LARDER_SLURM_CONFIG": str(self.config)}
        self.server = ServerProgram("slurm.py", directory / "slurm", "--nodes", 8, "--etc", etc, environment=environment)
        self._stack.callback(self.server.stop)
        # sbatch gives a job the environment of its user.
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        self._environment = clean | {"SLURM_CONF": self.server.values["conf"], "HOME": "/tmp"}

    def start_allocator(self) -> None:
        self.allocator = Allocator(self.programs, self.directory, "--state", str(self.directory / "allocator"), "--lease", "4 s")

    def stop(self) -> None:
        self._stack.close()

    def rows(self, kind: str) -> dict[str, dict[str, object]]:
        """The allocator's nodes, datasets or jobs, by name."""
        return {row["name"]: row for row in self.allocator.ask("GET", f"/v1/{kind}").json()[kind]}

    def datasets(self) -> dict[str, dict[str, object]]:
        return self.rows("datasets")

    def jobs(self) -> dict[str, dict[str, object]]:
        return self.rows("jobs")

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.05)

    def logs(self) -> str:
        """The ends of Slurm's logs, for a test that fails."""
        logs = (self.directory / "slurm").glob("*.log")
        return "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs) + self.scontrol("show", "job")

    def run(self, *command: object, user: str = "nobody") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, command)), env=self._environment, cwd=self.directory / "jobs", capture_output=True, text=True,
            user=USERS.get(user, 0), group=USERS.get(user, 0), extra_groups=[], timeout=300, check=False,
        )  # fmt: skip

    def scontrol(self, *arguments: object) -> str:
        return self.run("scontrol", *arguments, user="root").stdout

    def submit(self, words: str, command: str = "true", *options: object, user: str = "nobody") -> "subprocess.CompletedProcess[str]":
        script = self.directory / "jobs" / "job.sh"
        script.write_text(f"#!/bin/bash\n#BB_LUA larder {words}\n{command}\n")
        return self.run("sbatch", "--parsable", f"--nodelist={NODE}", *options, script, user=user)

    def submitted(self, words: str, command: str = "true", *options: object, user: str = "nobody") -> str:
        ran = self.submit(words, command, *options, user=user)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def state(self, job: str) -> str:
        found = re.search(r"JobState=(\w+)", self.scontrol("show", "job", job))
        return found[1] if found else ""

    def bb_state(self, job: str) -> str:
        found = re.search(r"BurstBufferState=(\S+)", self.scontrol("show", "job", job))
        return found[1] if found else ""

    def output(self, job: str) -> str:
        return (self.directory / "jobs" / f"slurm-{job}.out").read_text()

    def ends(self, job: str, state: str = "COMPLETED") -> None:
        """Waits until the job has ended, and what it had reserved is released."""
        over = ("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT")
        self.until(lambda: self.state(job) in over)
        assert self.state(job) == state, self.logs()
        self.until(lambda: not self.jobs().get(f"slurm-{job}", {}).get("registered"))


@pytest.fixture(scope="module")
def cluster(open_directory: pathlib.Path, larder_bin: pathlib.Path, repository: pathlib.Path) -> Iterator[Cluster]:
    started = Cluster(larder_bin, repository, open_directory)
    yield started
    started.stop()


def reader(cluster: Cluster, then: str = "") -> str:
    program = cluster.directory / "jobs" / "read.py"
    program.write_text(READ)
    return f"{sys.executable} {program} {then}"


def test_job_reads_its_warm_dataset_and_counts_where_slurm_runs_it(cluster: Cluster) -> None:
    go = cluster.directory / "jobs" / "go"
    command = f"env | grep ^LARDER_ | sort; until [ -e {go} ]; do sleep 0.05; done; {reader(cluster)}"
    job = cluster.submitted("dataset=images cache=32MiB bandwidth=100MB/s gpus=2", command, "--gres=gpu:2")
    name = f"slurm-{job}"
    cluster.until(lambda: cluster.state(job) == "RUNNING" and cluster.jobs().get(name, {}).get("running"))
    placed = cluster.jobs()[name]
    assert placed["nodes"] == [NODE] and placed["ranks"] == 2, "it has read nothing yet"
    assert placed["user"] == USERS["nobody"] and placed["dataset"] == "images"
    assert placed["cache_bytes"] == 32 << 20 and placed["staged"]
    cluster.until(lambda: cluster.jobs()[name]["bandwidth_bytes_per_second"] >= 100e6)
    size = sum(map(len, cluster.contents["images"].values()))
    assert cluster.datasets()["images"]["cached_bytes"] >= size, "stage-in has warmed all of it"
    go.touch()
    cluster.ends(job)
    assert cluster.output(job).splitlines() == [
        "LARDER_DATASET=images", f"LARDER_JOB={name}", f"LARDER_SOCKET={cluster.daemon.socket}", f"{name} {size} 0"
    ], "it reads nothing from the remote"  # fmt: skip


REFUSALS = {
    "dataset=imagse": 'no node has a dataset "imagse"; did you mean "images"?',
    "dataset=images cache=1TiB": 'cache=1.00 TiB is more than the nodes with dataset "images" have: 512.00 MiB',
    "dataset=images bandwidth=9GB/s": "bandwidth=9.00 GB/s is more than the remote gives to all jobs: 1.00 GB/s",
    "dataset=images gpus=3": "gpus=3 is more than the nodes have: 2",
    "dataset=images cache=much": '"cache=much": ',
    "dataset=images gpus=-1": '"gpus=-1": expected a whole number above 0',
    "dataset=images quota=1": '"quota=1": unknown; expected #BB_LUA larder dataset=NAME',
    "dataset=images dataset=texts": '"dataset=texts": was given before',
    "cache=1GiB": "dataset=NAME is missing",
}


@pytest.mark.parametrize("words", REFUSALS)
def test_refusal_reaches_the_user_of_sbatch(cluster: Cluster, words: str) -> None:
    refused = cluster.submit(words)
    assert refused.returncode != 0
    assert f"larder: {REFUSALS[words]}" in refused.stderr
    assert cluster.run("squeue", "-h").stdout == ""


def test_root_may_not_use_burst_buffers_and_jobs_without_the_line_are_left_alone(cluster: Cluster) -> None:
    plain = cluster.run("sbatch", "--parsable", "--wrap", "env | grep -c ^LARDER_")
    assert plain.returncode == 0, plain.stderr
    cluster.until(lambda: cluster.state(plain.stdout.strip()) == "FAILED")
    assert cluster.output(plain.stdout.strip()) == "0\n"
    assert cluster.submit("dataset=images", user="root").returncode != 0


def test_slurm_shows_the_cache_and_the_plan(cluster: Cluster) -> None:
    job = cluster.submitted("dataset=images cache=16MiB", "sleep 1000")
    cluster.until(lambda: cluster.jobs().get(f"slurm-{job}", {}).get("running"))
    shown = cluster.run("scontrol", "show", "bbstat").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["remote", "1.00", "GB/s"] in lines
    assert [line[0] for line in lines if line and line[-1] == f"slurm-{job}"] == ["images"], shown
    assert any(line[:3] == [f"slurm-{job}", "runs", "images"] and line[-1] == NODE for line in lines), shown
    pool = re.search(r"PoolName\[0\]=larder .*TotalSpace=(\S+) FreeSpace=(\S+)", cluster.scontrol("show", "burst"))
    assert pool and pool[1].startswith("512M"), cluster.scontrol("show", "burst")
    cluster.run("scancel", job)
    cluster.ends(job, "CANCELLED")


def test_cancelled_job_ends_its_stage_in(cluster: Cluster) -> None:
    """Two jobs reserve more bandwidth than there is: the second one waits in its stage-in."""
    holder = cluster.submitted("dataset=images bandwidth=800MB/s", "sleep 1000")
    cluster.until(lambda: cluster.state(holder) == "RUNNING")
    waiting = cluster.submitted("dataset=images bandwidth=800MB/s")
    cluster.until(lambda: cluster.bb_state(waiting) == "staging-in")
    cluster.until(lambda: stage_ins(waiting))
    cluster.run("scancel", waiting)
    cluster.ends(waiting, "CANCELLED")
    cluster.until(lambda: not stage_ins(waiting))
    third = cluster.submitted("dataset=images bandwidth=800MB/s")
    cluster.until(lambda: stage_ins(third))
    cluster.run("scancel", holder)
    cluster.until(lambda: cluster.state(third) in ("RUNNING", "COMPLETING", "COMPLETED"))


def test_cancelled_job_ends_its_warming(cluster: Cluster) -> None:
    (cluster.directory / "slow").mkdir()
    for number in range(64):  # more than the burst of a rate limit
        (cluster.directory / "slow" / f"{number}.bin").write_bytes(os.urandom(1 << 20))
    cluster.daemon.command("dataset", "add", "slow", cluster.directory / "slow", "--format", "raw", "--mode", "0444")
    cluster.until(lambda: "slow" in cluster.datasets())
    assert cluster.allocator.ask("PUT", "/v1/remote", {"bytes_per_second": 1e5}).status == 200
    try:
        # The lease of the time before has ended, or is replaced.
        number = cluster.rows("nodes")[NODE]["lease"]["number"]
        cluster.until(lambda: cluster.rows("nodes")[NODE]["lease_applied"] > number)
        job = cluster.submitted("dataset=slow cache=128MiB")
        cluster.until(lambda: cluster.datasets()["slow"]["cached_bytes"] > 0)
        cluster.until(lambda: busy(cluster.daemon, "slow"))
        assert stage_ins(job)
        cluster.run("scancel", job)
        cluster.ends(job, "CANCELLED")
        cluster.until(lambda: not busy(cluster.daemon, "slow"))
        assert cluster.datasets()["slow"]["cached_bytes"] < cluster.datasets()["slow"]["size_bytes"]
    finally:
        assert cluster.allocator.ask("DELETE", "/v1/remote").status == 200


def busy(daemon: Daemon, dataset: str) -> bool:
    """True while a task of the node works on the dataset."""
    ran = daemon.try_command("dataset", "index", dataset)
    return ran.returncode != 0 and "task" in ran.stderr


def stage_ins(job: str) -> list[str]:
    """The processes that stage the job in."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 2 and words[1:3] == [b"stage-in", job.encode()]:
            found.append(process.name)
    return found


def test_two_users_have_jobs_of_their_own(cluster: Cluster) -> None:
    go = cluster.directory / "jobs" / "go-both"
    command = f"until [ -e {go} ]; do sleep 0.05; done; {reader(cluster)}"
    jobs = {user: cluster.submitted("dataset=images cache=16MiB", command, user=user) for user in USERS}
    cluster.until(lambda: {user: cluster.jobs().get(f"slurm-{job}", {}).get("user") for user, job in jobs.items()} == USERS)
    go.touch()
    for job in jobs.values():
        cluster.ends(job)
        assert cluster.output(job).startswith(f"slurm-{job} ")


def test_jobs_that_slurm_does_not_know_are_released(cluster: Cluster) -> None:
    running = cluster.submitted("dataset=images", "sleep 1000")
    cluster.until(lambda: cluster.jobs().get(f"slurm-{running}", {}).get("running"))
    for name in ("slurm-999999", "other-999999"):
        assert cluster.allocator.ask("POST", "/v1/jobs", {"name": name, "dataset": "images"}).status in (200, 201)
    cluster.server.ask({"do": "restart"})  # slurmctld asks for the pools when it starts
    cluster.until(lambda: "slurm-999999" not in cluster.jobs())
    assert cluster.jobs()[f"slurm-{running}"]["registered"] and cluster.jobs()["other-999999"]["registered"]
    assert cluster.allocator.ask("DELETE", "/v1/jobs/other-999999").status in (200, 204)
    cluster.run("scancel", running)
    cluster.ends(running, "CANCELLED")


def test_slurmctld_may_restart_while_a_job_is_staged_in(cluster: Cluster) -> None:
    holder = cluster.submitted("dataset=images bandwidth=800MB/s", "sleep 1000")
    cluster.until(lambda: cluster.state(holder) == "RUNNING")
    waiting = cluster.submitted("dataset=texts bandwidth=800MB/s cache=16MiB", reader(cluster))
    cluster.until(lambda: stage_ins(waiting))
    cluster.server.ask({"do": "restart"})
    assert cluster.state(holder) == "RUNNING"
    cluster.run("scancel", holder)
    cluster.ends(holder, "CANCELLED")
    # Slurm has ended the stage-in, and begins it anew after a minute: the test does not wait for that.
    cluster.until(lambda: cluster.bb_state(waiting) == "complete" and not stage_ins(waiting))
    cluster.scontrol("update", f"JobId={waiting}", "StartTime=now")
    cluster.ends(waiting)
    size = sum(map(len, cluster.contents["texts"].values()))
    assert cluster.output(waiting) == f"slurm-{waiting} {size} 0\n"


def runs_on(cluster: Cluster, job: str) -> list[str]:
    """The nodes on which the allocator says that the job runs."""
    row = cluster.jobs().get(f"slurm-{job}", {})
    return list(row.get("nodes", [])) if row.get("running") else []


def test_cancelled_job_that_runs_is_released(cluster: Cluster) -> None:
    job = cluster.submitted("dataset=images cache=16MiB bandwidth=900MB/s", "sleep 1000")
    cluster.until(lambda: runs_on(cluster, job) == [NODE])
    cluster.run("scancel", job)
    cluster.ends(job, "CANCELLED")
    after = cluster.submitted("dataset=images bandwidth=900MB/s")
    cluster.ends(after)


def test_job_counts_while_slurmd_is_killed_and_started_again(cluster: Cluster) -> None:
    go = cluster.directory / "jobs" / "go-killed"
    began = cluster.directory / "jobs" / "began-killed"
    job = cluster.submitted("dataset=images bandwidth=100MB/s", f"touch {began}; until [ -e {go} ]; do sleep 0.05; done")
    cluster.until(began.exists)  # after its prolog
    assert runs_on(cluster, job) == [NODE]
    cluster.server.ask({"do": "kill", "node": NODE})
    try:
        assert runs_on(cluster, job) == [NODE] and cluster.state(job) == "RUNNING"
    finally:
        cluster.server.ask({"do": "start", "node": NODE})
    go.touch()
    cluster.ends(job)


def test_drained_node_keeps_its_job(cluster: Cluster) -> None:
    go = cluster.directory / "jobs" / "go-drained"
    job = cluster.submitted("dataset=images bandwidth=100MB/s", f"until [ -e {go} ]; do sleep 0.05; done")
    cluster.until(lambda: runs_on(cluster, job) == [NODE])
    cluster.scontrol("update", f"NodeName={NODE}", "State=DRAIN", "Reason=test")
    try:
        waiting = cluster.submitted("dataset=images")
        assert runs_on(cluster, job) == [NODE] and cluster.jobs()[f"slurm-{job}"]["ranks"] == 0
        go.touch()
        cluster.ends(job)
        assert cluster.state(waiting) == "PENDING"
    finally:
        cluster.scontrol("update", f"NodeName={NODE}", "State=RESUME")
    cluster.ends(waiting)


REQUEUED = {
    "operator": ["requeue"],
    "node failure": ["update", f"NodeName={NODE}", "State=DOWN", "Reason=test"],
}


@pytest.mark.parametrize("reason", REQUEUED)
def test_requeued_job_is_released_and_registered_again(cluster: Cluster, reason: str) -> None:
    """It reserves 900 MB/s: what its first run had must be free again for its second run."""
    go = cluster.directory / "jobs" / f"go-{reason.split()[0]}"
    loop = f"until [ -e {go} ]; do sleep 0.05; done"
    job = cluster.submitted("dataset=images cache=16MiB bandwidth=900MB/s", f"{loop}; {reader(cluster)}", "--requeue")
    cluster.until(lambda: runs_on(cluster, job) == [NODE])
    words = REQUEUED[reason]
    cluster.scontrol(*words, *([job] if words == ["requeue"] else []))
    cluster.until(lambda: "Restarts=1" in cluster.scontrol("show", "job", job))
    cluster.until(lambda: not runs_on(cluster, job))
    if words != ["requeue"]:
        cluster.scontrol("update", f"NodeName={NODE}", "State=RESUME")
    go.touch()
    # Slurm lets a requeued job start after two minutes.
    cluster.until(lambda: cluster.state(job) == "PENDING")
    cluster.scontrol("update", f"JobId={job}", "StartTime=now")
    cluster.ends(job)
    assert cluster.output(job).split()[0] == f"slurm-{job}"


def test_tasks_of_an_array_are_jobs_of_their_own(cluster: Cluster) -> None:
    go = cluster.directory / "jobs" / "go-array"
    master = cluster.submitted(
        "dataset=images cache=16MiB bandwidth=100MB/s", f"until [ -e {go} ]; do sleep 0.05; done; {reader(cluster)}",
        "--array=1-3", "--output=array-%a.out",
    )  # fmt: skip

    def registered() -> set[str]:
        return {name for name, row in cluster.jobs().items() if row.get("registered") and name.startswith("slurm-")}

    cluster.until(lambda: len(registered()) == 3)
    seen = registered()
    go.touch()
    cluster.until(lambda: not cluster.run("squeue", "-h", "-j", master, user="root").stdout)
    names = {(cluster.directory / "jobs" / f"array-{task}.out").read_text().split()[0] for task in (1, 2, 3)}
    assert len(names) == 3 and names == seen
    assert f"slurm-{master}" in names, "the last task has the number of the array"
    cluster.until(lambda: not any(row.get("registered") for row in cluster.jobs().values()))


@contextlib.contextmanager
def second_node(cluster: Cluster, name: str) -> Iterator[Daemon]:
    """A daemon on node n2, which shares no cache with the other one."""
    second = Daemon(
        cluster.programs, cluster.directory / name, "--socket-mode", "0666",
        "--allocator.endpoint", str(cluster.allocator.socket), "--allocator.node", "n2", "--allocator.gpus", "2",
    )  # fmt: skip
    second.start()
    try:
        cluster.until(lambda: "n2" in cluster.rows("nodes"))
        yield second
    finally:
        second.end()
        cluster.until(lambda: not cluster.rows("nodes")["n2"]["alive"])
        cluster.until(lambda: cluster.allocator.ask("DELETE", "/v1/nodes/n2").status == 200)


def test_job_on_two_nodes_counts_on_both_and_has_its_paths_on_both(cluster: Cluster) -> None:
    with second_node(cluster, "node2"):
        go = cluster.directory / "jobs" / "go-two"
        command = f"srun env | grep ^LARDER_ | sort; until [ -e {go} ]; do sleep 0.05; done"
        job = cluster.submitted(
            "dataset=images cache=16MiB bandwidth=100MB/s", command,
            f"--nodelist={NODE},n2", "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2",
        )  # fmt: skip
        cluster.until(lambda: sorted(runs_on(cluster, job)) == [NODE, "n2"])
        row = cluster.jobs()[f"slurm-{job}"]
        assert row["ranks"] == 4, row
        go.touch()
        cluster.ends(job)
        lines = ["LARDER_DATASET=images", f"LARDER_JOB=slurm-{job}", f"LARDER_SOCKET={cluster.daemon.socket}"]
        assert cluster.output(job).splitlines() == sorted(lines * 2)


def cached(cluster: Cluster, dataset: str) -> dict[str, int]:
    """The dataset's cached bytes by node."""
    return {node["name"]: sum(node["cached"].values()) for node in cluster.datasets()[dataset]["nodes"]}


def test_dataset_is_warmed_on_the_node_where_slurm_expects_the_job(cluster: Cluster) -> None:
    """Backfill looks only once the job waits, so its dataset may have been warmed on both nodes for some seconds."""
    size = 64 << 20  # more than the burst of a rate limit
    (cluster.directory / "expected").mkdir()
    for number in range(64):
        (cluster.directory / "expected" / f"{number}.bin").write_bytes(os.urandom(size // 64))
    others = ",".join(f"n{number}" for number in range(3, 9))
    go = cluster.directory / "jobs" / "go-expected"
    with second_node(cluster, "node2-expected") as second, contextlib.ExitStack() as ended:
        daemons = {NODE: cluster.daemon, "n2": second}
        for daemon in daemons.values():
            daemon.command("dataset", "add", "expected", cluster.directory / "expected", "--format", "raw", "--mode", "0444")
        ended.callback(lambda: cluster.daemon.command("dataset", "rm", "expected"))
        cluster.until(lambda: "expected" in cluster.datasets() and set(cached(cluster, "expected")) == set(daemons))
        holders = {}
        for node, minutes in ((NODE, 60), ("n2", 10)):
            holders[node] = cluster.run(
                "sbatch", "--parsable", "--exclusive", f"--nodelist={node}", f"--time={minutes}", "--wrap", "sleep 1000"
            ).stdout.strip()
            ended.callback(lambda job=holders[node]: cluster.run("scancel", job))
        cluster.until(lambda: all(cluster.state(job) == "RUNNING" for job in holders.values()))
        assert cluster.allocator.ask("PUT", "/v1/remote", {"bytes_per_second": 1e5}).status == 200
        ended.callback(lambda: cluster.allocator.ask("DELETE", "/v1/remote"))
        cluster.until(lambda: all("lease" in cluster.rows("nodes")[node] for node in daemons))
        leases = {node: cluster.rows("nodes")[node]["lease"]["number"] for node in daemons}
        cluster.until(lambda: all(cluster.rows("nodes")[node]["lease_applied"] > leases[node] for node in daemons))
        job = cluster.submitted(
            "dataset=expected cache=64MiB", f"until [ -e {go} ]; do sleep 0.05; done",
            "--nodelist=", f"--exclude={others}", "--nodes=1", "--exclusive", "--time=5",
        )  # fmt: skip
        ended.callback(lambda: cluster.run("scancel", job))
        cluster.until(lambda: cluster.run("squeue", "-h", "-j", job, "-o", "%Y").stdout.strip() == "n2")
        cluster.until(lambda: busy(second, "expected") and not busy(cluster.daemon, "expected"))
        before = cached(cluster, "expected")[NODE]
        assert before < size
        assert cluster.allocator.ask("DELETE", "/v1/remote").status == 200
        cluster.until(lambda: cluster.jobs()[f"slurm-{job}"]["staged"])
        after = cached(cluster, "expected")
        assert after[NODE] == before and sum(after.values()) >= size, after
        cluster.run("scancel", holders["n2"])
        cluster.until(lambda: runs_on(cluster, job) == ["n2"])
        go.touch()
        cluster.ends(job)


def as_user(cluster: Cluster, user: str, method: str, target: str, body: object = None) -> int:
    """Asks the allocator as a user of the machine, without a token."""
    code = (
        "import http.client, json, socket, sys\n"
        "connection = http.client.HTTPConnection('localhost')\n"
        "connection.sock = socket.socket(socket.AF_UNIX)\n"
        "connection.sock.connect(sys.argv[1])\n"
        "connection.request(sys.argv[2], sys.argv[3], sys.argv[4] or None, {'Content-Type': 'application/json'})\n"
        "print(connection.getresponse().status)\n"
    )
    text = "" if body is None else json.dumps(body)
    ran = cluster.run("/usr/bin/python3", "-c", code, cluster.allocator.socket, method, target, text, user=user)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def test_user_cannot_use_or_release_what_another_has_reserved(cluster: Cluster) -> None:
    cluster.allocator.socket.chmod(0o666)
    cluster.daemon.command(
        "dataset", "add", "private", cluster.directory / "texts", "--format", "raw", "--mode", "0400", "--owner", "nobody"
    )
    cluster.until(lambda: "private" in cluster.datasets())
    go = cluster.directory / "jobs" / "go-users"
    loop = f"until [ -e {go} ]; do sleep 0.05; done"
    job = cluster.submitted("dataset=private cache=16MiB", f"{loop}; {reader(cluster)}")
    name = f"slurm-{job}"
    cluster.until(lambda: runs_on(cluster, job) == [NODE])
    assert as_user(cluster, "daemon", "DELETE", f"/v1/jobs/{name}") == 403
    body = {"cache_bytes": 0, "bandwidth_floor_bytes_per_second": 0}
    assert as_user(cluster, "daemon", "PUT", f"/v1/jobs/{name}/reservation", body) == 403
    assert as_user(cluster, "daemon", "POST", f"/v1/jobs/{name}/placement", {"node": NODE, "runs": False}) == 403
    assert cluster.run("scancel", job, user="daemon").returncode != 0
    # Neither does the job's name give another user the private dataset.
    program = cluster.directory / "jobs" / "read.py"
    environment = ["LARDER_DATASET=private", f"LARDER_JOB={name}", f"LARDER_SOCKET={cluster.daemon.socket}"]
    refused = cluster.run("env", *environment, sys.executable, program, user="daemon")
    assert refused.returncode != 0 and "private" in refused.stderr, refused
    other = cluster.submitted("dataset=private", reader(cluster), user="daemon")
    cluster.ends(other, "FAILED")
    assert cluster.jobs()[name]["registered"]
    go.touch()
    cluster.ends(job)
    cluster.daemon.command("dataset", "rm", "private")


def licences(cluster: Cluster) -> int:
    """The licences of the remote that Slurm says are in use."""
    found = re.search(r"LicenseName=remoteio\s+Total=100000 Used=(\d+)", cluster.scontrol("show", "licenses"))
    assert found, cluster.scontrol("show", "licenses")
    return int(found[1])


def test_licences_are_kept_at_the_bandwidth_that_is_granted(cluster: Cluster) -> None:
    assert licences(cluster) == 0
    go = cluster.directory / "jobs" / "go-licences"
    loop = f"until [ -e {go} ]; do sleep 0.05; done"
    first = cluster.submitted("dataset=images bandwidth=600.5MB/s", loop, "--licenses=other:2")
    cluster.until(lambda: runs_on(cluster, first) == [NODE])
    assert licences(cluster) == 601
    plain = cluster.submitted("dataset=images", loop)
    cluster.until(lambda: runs_on(cluster, plain) == [NODE])
    assert licences(cluster) == 601
    second = cluster.submitted("dataset=images bandwidth=400MB/s", loop)
    cluster.until(lambda: stage_ins(second))
    assert licences(cluster) == 601, "the allocator has not granted it yet"
    for words in ("--licenses=remoteio:1", "-Lother:1,remoteio:1"):
        refused = cluster.submit("dataset=images bandwidth=1MB/s", "true", words)
        assert refused.returncode != 0 and "remoteio follows from bandwidth=" in refused.stderr, refused.stderr
    changed = cluster.run("scontrol", "update", f"JobId={second}", "Licenses=remoteio:1")
    assert changed.returncode != 0 and "Invalid license" in changed.stderr, changed
    assert cluster.run("scontrol", "update", f"JobId={second}", "Comment=mine").returncode == 0
    assert "Licenses=remoteio:400 " in cluster.scontrol("show", "job", second)
    wrong = cluster.submit("dataset=images bandwidth=much")
    assert wrong.returncode != 0 and '"bandwidth=much": ' in wrong.stderr
    go.touch()
    for job in (first, plain, second):
        cluster.ends(job)
    assert licences(cluster) == 0


def test_slurm_answers_while_no_allocator_does(cluster: Cluster) -> None:
    running = cluster.submitted("dataset=images", "sleep 1000")
    cluster.until(lambda: cluster.jobs().get(f"slurm-{running}", {}).get("running"))
    cluster.config.write_text(cluster.config.read_text().replace("10 s", "200 ms"))
    pid = cluster.allocator.ask("GET", "/v1/status").json()["pid"]
    os.kill(pid, signal.SIGSTOP)
    refused = cluster.submit("dataset=images")
    assert refused.returncode != 0 and "no allocator has answered within 200 ms" in refused.stderr, refused.stderr
    shown = cluster.run("scontrol", "show", "bbstat")
    assert "no allocator has answered within 200 ms" in shown.stdout + shown.stderr, shown
    os.kill(pid, signal.SIGCONT)
    cluster.config.write_text(cluster.config.read_text().replace("200 ms", "10 s"))
    cluster.allocator.kill()
    refused = cluster.submit("dataset=images")
    assert refused.returncode != 0 and f"no allocator answers at {cluster.allocator.socket}" in refused.stderr
    plain = cluster.run("sbatch", "--parsable", "--wrap", "true").stdout.strip()
    cluster.until(lambda: cluster.state(plain) == "COMPLETED")
    cluster.run("scancel", running)
    cluster.until(lambda: cluster.state(running) == "CANCELLED")
    cluster.start_allocator()
    cluster.until(lambda: f"slurm-{running}" not in cluster.jobs())
