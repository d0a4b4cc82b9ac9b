"""The cluster of end_to_end.py and of end_to_end_las.py, without jobs: nodes, a remote of limited bandwidth and an
allocator, which are machines with networks of their own. `simulated` runs the same cluster in the simulator, and
`on_own_site` is what the programs in bench/ have in common."""

from __future__ import annotations

import concurrent.futures
import contextlib
import csv
import dataclasses
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from allocator_process import Allocator
from conftest import Daemon
from http_api import UnixConnection, ask
from machines import Machines, in_own_network, run as run_command
from servers import Nginx

GPUS = 2  # of each node
NODE_MEMORY = 96 << 20  # cache of a node
SAMPLE = 128 << 10  # bytes of each sample, which is a block
LINK = 1.2  # the remote's link over its bandwidth: requests, headers and indexing are not paid for
OWN_ADDRESS = "10.98.0.100"
ENDED = ("succeeded", "failed", "cancelled")
LIMIT_S = 300.0  # longer than a busy machine needs for any step
PRIORITY = -10


class Failure(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Job:
    name: str
    tenant: str
    dataset: str
    gpus: int
    rate: float  # f*, bytes/s
    epochs: int
    submit_s: float
    after: str = ""

    @property
    def nodes(self) -> int:
        return (self.gpus + GPUS - 1) // GPUS


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a site is made of."""

    nodes: tuple[str, ...]
    remote: float  # bytes/s, of all jobs
    datasets: Mapping[str, int]  # samples of each
    scheduler: str  # lines of the allocator's table [scheduler]
    tenants: Mapping[str, Mapping[str, int]]
    declares_rates: bool  # jobs say their f*; else it is measured
    step: int  # batches after which a job's ranks wait for each other

    def bytes_of(self, job: Job) -> int:
        return job.epochs * self.datasets[job.dataset] * SAMPLE

    def tenants_text(self) -> str:
        tables = (
            "\n".join((f"[scheduler.tenant.{name}]", *(f"{key} = {value}" for key, value in keys.items())))
            for name, keys in self.tenants.items()
        )
        return "\n".join(tables) + "\n"


def until(holds: Callable[[], object], what: str) -> None:
    gives_up = time.monotonic() + LIMIT_S
    while not holds():
        if time.monotonic() > gives_up:
            raise Failure(f"{LIMIT_S} s have passed, and {what}")
        time.sleep(0.05)


class Site:
    """The cluster without an engine: networks, remote, allocator and daemons."""

    def __init__(
        self, setting: Setting, programs: pathlib.Path, directory: pathlib.Path, stack: contextlib.ExitStack
    ) -> None:
        self.setting = setting
        self.programs = programs
        self.directory = directory
        self.stack = stack
        self.address = {"remote": "10.98.0.1", "alloc": "10.98.0.2"} | {
            node: f"10.98.0.{number}" for number, node in enumerate(setting.nodes, start=11)
        }
        self.machines = Machines(self.address, OWN_ADDRESS)
        self.daemons: dict[str, Daemon] = {}
        self._start_allocator()  # first, as it waits before it leases
        self._start_remote()
        with concurrent.futures.ThreadPoolExecutor(len(setting.nodes)) as pool:
            list(pool.map(self._start_node, setting.nodes))

    def wait_for_leases(self) -> None:
        """Waits until all nodes have leases. A new allocator leases nothing while an earlier lease could hold."""

        def have_leases() -> bool:
            return all("lease" in node for node in self.allocator.ask("GET", "/v1/nodes").json()["nodes"])

        until(have_leases, "not all nodes have leases")

    def _start_remote(self) -> None:
        files = self.directory / "remote"
        files.mkdir()
        draw = random.Random(18)
        for name, samples in self.setting.datasets.items():
            source = self.directory / "source" / name
            source.mkdir(parents=True)
            for number in range(samples):
                (source / f"{number:04}.bin").write_bytes(draw.randbytes(SAMPLE))
            self.run(
                "larder", "dataset", "pack", source, files / name, "--format", "larder", "--block", "sample",
                "--shard-size", "16MiB",
            )  # fmt: skip
            shutil.rmtree(source)
            shards = sorted(path.name for path in (files / name).iterdir())
            (files / name / "all.txt").write_text("\n".join(shards) + "\n")
        self.machines.limit_sent("remote", LINK * self.setting.remote, burst_bytes=1 << 20)
        nginx = Nginx(files, "--address", self.address["remote"], prefix=self.machines.on("remote"))
        self.stack.callback(nginx.stop)
        self.url = f"http://{self.address['remote']}:{nginx.port}"

    def _start_allocator(self) -> None:
        tokens = self.directory / "tokens"
        tokens.write_text("".join(f"node {node} token-of-{node}-0123456789\n" for node in self.setting.nodes))
        tokens.chmod(0o600)
        config = self.directory / "allocator.toml"
        scheduler = f'[scheduler]\nengine = "agent"\n{self.setting.scheduler}\n'
        config.write_text(scheduler + self.setting.tenants_text())
        self.allocator = Allocator(
            self.programs, self.directory, "--config", str(config), "--state", str(self.directory / "state"),
            "--listen", f"{self.address['alloc']}:7600", "--plain-tcp", "true", "--access.tokens", str(tokens),
            *(word for node in self.setting.nodes for word in (f"--scheduler.node.{node}.gpus", str(GPUS))),
            remote_bandwidth=f"{self.setting.remote / 1e6:g} MB/s", prefix=self.machines.on("alloc"),
        )  # fmt: skip
        self.stack.callback(self.allocator.kill)

    def _start_node(self, node: str) -> None:
        token = self.directory / f"{node}.token"
        token.write_text(f"token-of-{node}-0123456789\n")
        token.chmod(0o600)
        daemon = Daemon(
            self.programs, self.directory / node, "--allocator.endpoint", f"http://{self.address['alloc']}:7600",
            "--allocator.node", node, "--allocator.token-file", str(token), "--allocator.gpus", str(GPUS),
            "--socket-mode", "0666", prefix=self.machines.on(node), memory=f"{NODE_MEMORY >> 20} MiB", disk="0",
        )  # fmt: skip
        self.daemons[node] = daemon
        self.stack.callback(daemon.end)
        daemon.start()
        for name in self.setting.datasets:
            daemon.command("dataset", "add", name, f"{self.url}/{name}/all.txt", "--format", "larder")

    def run(self, program: str, *arguments: object) -> str:
        ran = subprocess.run(
            [self.programs / program, *map(str, arguments)], capture_output=True, text=True, cwd=self.directory
        )
        if ran.returncode != 0:
            raise Failure(f"{program} {arguments}: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def larder(self, *arguments: object) -> str:
        """Runs a command against the allocator."""
        return self.run("larder", "--allocator", self.allocator.socket, *arguments)

    def samples(self) -> dict[tuple[str, str], int]:
        """The samples that the training loops have taken, by node and job, as the daemons that are left count."""
        taken = {}
        for node in self.daemons:
            text = ask(UnixConnection(self.directory / node / "admin.sock"), "GET", "/metrics").body.decode()
            for job, count in re.findall(r'^larder_job_samples_total\{.*job="([^"]+)".*\} (\S+)', text, re.MULTILINE):
                taken[node, job] = int(float(count))
        return taken

    def predicted(self) -> dict[str, float]:
        """The rate of each job by the plan, in bytes/s."""
        jobs = self.allocator.ask("GET", "/v1/plan").json()["jobs"]
        return {job["name"]: job["predicted_bytes_per_second"] for job in jobs}

    def lose(self, node: str) -> None:
        """The node's machine is gone: its network, and its daemon."""
        self.machines.cut_off(node)
        self.daemons.pop(node).end(signal.SIGKILL)

    def queue(self) -> dict[str, dict]:
        """The jobs of the queue, and those that have ended, by name."""
        answers = [self.allocator.ask("GET", target).json() for target in ("/v1/queue", "/v1/history")]
        return {job["name"]: job for answer in answers for job in answer["jobs"]}


def simulated(
    site: Site, jobs: Sequence[Job], submitted_s: Mapping[str, float], restart_s: float, *options: object
) -> dict[str, dict[str, str]]:
    """The rows of `larder simulate`, by job, for the same cluster and these jobs, in the order of submission."""
    setting = site.setting
    trace, table = site.directory / "trace.csv", site.directory / "table.toml"
    tenants, rows_file = site.directory / "tenants.toml", site.directory / "jobs.csv"
    tenants.write_text(setting.tenants_text())
    models = [
        f'[[dataset]]\nname = "{name}"\nsize = "{samples * SAMPLE} B"\n' for name, samples in setting.datasets.items()
    ]
    models += [
        f'[[model]]\nname = "{job.name}"\ndataset = "{job.dataset}"\nrestart = "{restart_s:.3f} s"\n'
        f'rate = {{ n = "{job.rate / job.gpus:.0f} B/s" }}\n'
        for job in jobs
    ]
    table.write_text('reference = "n"\n' + "\n".join(models))
    sizes = {row["name"]: row["size_bytes"] for row in site.allocator.ask("GET", "/v1/datasets").json()["datasets"]}
    # A block takes more room in a daemon than its own bytes.
    payload = sum(setting.datasets.values()) * SAMPLE / sum(sizes[name] for name in setting.datasets)
    lines = ["submit_s,duration_s,gpus,name,tenant,model\n"]
    for job in jobs:
        duration_s = setting.bytes_of(job) / job.rate
        lines.append(f"{submitted_s[job.name]:.3f},{duration_s:.3f},{job.gpus},{job.name},{job.tenant},{job.name}\n")
    trace.write_text("".join(lines))
    nodes = len(setting.nodes)
    site.run(
        "larder", "simulate", trace, "--workload", table, "--tenants", tenants, "--gpus", f"n:{GPUS * nodes}",
        "--gpus-per-node", GPUS, "--reported-plans", "--own-caches", "--cache-size", f"{nodes * NODE_MEMORY * payload:.0f} B",
        "--bandwidth", f"{setting.remote / 1e6:g} MB/s", "--jobs-csv", rows_file, *options,
    )  # fmt: skip
    with rows_file.open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


@contextlib.contextmanager
def on_own_site(setting: Setting, programs: pathlib.Path) -> Iterator[tuple[Site, contextlib.ExitStack]]:
    """A site whose files are in memory. First runs the program again in a network of its own. A Failure gets the
    allocator's log."""
    in_own_network()
    # Other work of this machine must not take the nodes' processors.
    os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    with tempfile.TemporaryDirectory(prefix="larder-", dir="/tmp") as work, contextlib.ExitStack() as stack:
        # The disk of this machine may be busy with other things, too.
        run_command("mount", "-t", "tmpfs", "none", work)
        stack.callback(run_command, "umount", "--lazy", work)
        site = Site(setting, programs, pathlib.Path(work), stack)
        try:
            yield site, stack
        except Failure as failure:
            raise Failure(f"{failure}\n{site.allocator.log.read_text()[-3000:]}") from failure
