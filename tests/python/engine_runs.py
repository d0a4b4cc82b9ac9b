"""Runs jobs by one engine, for tests: by the local one, by one behind /v1/engine whose agent is a process of its own
(tests/servers/process_agent.py), by a real Slurm with the agent of larder-slurm, and by a real control plane of
Kubernetes with larder-kubernetes."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import kubernetes
import pytest
from allocator_process import Allocator
from kubernetes_runs import RunCluster
from slurm_place import PlaceSite

NODES = ("--scheduler.node.n1.gpus", "4", "--scheduler.node.n2.gpus", "4")
ENDED = ("succeeded", "failed", "cancelled")
FOREVER = 'trap "exit 0" TERM; touch runs-$LARDER_ATTEMPT; while :; do sleep 0.01; done'


class Runs:
    """An allocator that runs jobs by one engine, in a directory of its own."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, repository: pathlib.Path, engine: str) -> None:
        self.programs = programs
        self.directory = directory
        self.agent_program = repository / "tests" / "servers" / "process_agent.py"
        self.engine = engine
        self.agent: subprocess.Popen[bytes] | None = None
        self.agent_directory = directory / "agent"
        self.agent_directory.mkdir()
        self.nodes(n1="node_back", n2="node_back")
        self.agent_has_nodes = False
        self.options: tuple[str, ...] = ()
        self.allocator: Allocator | None = None

    def start(self, *options: str, agent: bool = True) -> Runs:
        self.options = options
        nodes = ("--scheduler.nodes", "agent") if self.agent_has_nodes else NODES
        given = (*nodes, "--scheduler.engine", self.engine, *options)
        self.allocator = Allocator(
            self.programs, self.directory, "--scheduler.directory", str(self.directory / "jobs"), *given
        )
        if self.engine == "agent" and agent and self.agent is None:
            self.start_agent()
        return self

    def restart_allocator(self) -> None:
        self.allocator.kill()
        self.start(*self.options)

    def lose_queue(self) -> None:
        """Restarts the allocator without what its queue has on record."""
        self.allocator.kill()
        shutil.rmtree(self.directory / "jobs")
        self.start(*self.options)

    def queue_record(self) -> pathlib.Path:
        """The directory of what the queue has on record."""
        return self.directory / "jobs" / "queue"

    def save_record(self) -> None:
        """Restarts the allocator, and keeps what its queue has on record."""
        self.allocator.kill()
        shutil.copytree(self.queue_record(), self.directory / "saved")
        self.start(*self.options)

    def restore_record(self) -> None:
        """Restarts the allocator with the record that was saved: its queue does not have what came later."""
        self.allocator.kill()
        shutil.rmtree(self.queue_record())
        (self.directory / "saved").rename(self.queue_record())
        self.start(*self.options)

    def start_agent(self) -> None:
        """Starts what carries out the allocator's actions. For the local engine that is the allocator itself."""
        if self.engine == "local":
            return self.restart_allocator()
        if self.agent is not None:
            return None
        with open(self.directory / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, self.agent_program, self.allocator.socket, self.agent_directory], stdout=log, stderr=log
            )
        return None

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
            self.agent = None

    def restart_agent(self) -> None:
        self.kill_agent()
        self.start_agent()

    def steer(self, file: str, text: str) -> None:
        """Writes a file that steers the agent; "" removes it."""
        path = self.agent_directory / file
        if not text:
            return path.unlink()
        new = self.agent_directory / f"{file}.new"
        new.write_text(text)
        new.rename(path)
        return None

    def nodes(self, **kinds: str) -> None:
        self.steer("nodes", "\n".join(f"{name} {kind}" for name, kind in kinds.items()))

    def inventory(self) -> dict[str, dict]:
        """What the allocator knows of its nodes."""
        return {node["node"]: node for node in self.allocator.ask("GET", "/v1/gpu-nodes").json()["nodes"]}

    def wait_for_gpus(self, **gpus: int) -> None:
        def reached() -> bool:
            return {name: node["gpus"] for name, node in self.inventory().items()} == gpus

        self.until(reached, f"the nodes are not {gpus}")

    def hold_resizes(self) -> None:
        """From now on, no resize comes to its end."""
        self.steer("hold-resize", "yes")

    def go_on(self) -> None:
        self.steer("hold-resize", "")

    def refuse_resizes(self, reason: str) -> None:
        self.steer("refuse-resize", reason)

    def is_resize_told(self, job: int) -> bool:
        """Whether the agent has a resize of the job under way."""
        return (self.attempt(job) / "resize").exists()

    def larder(self, *arguments: object, status: int | None = 0) -> str:
        """Returns what `larder` says. None: with any exit code."""
        ran = subprocess.run(
            [self.programs / "larder", "--allocator", self.allocator.socket, *map(str, arguments)],
            capture_output=True, text=True, cwd=self.directory,
        )  # fmt: skip
        assert status is None or ran.returncode == status, f"larder {arguments}: {ran.stdout}{ran.stderr}"
        return ran.stdout + ran.stderr

    def submit(self, *options: object, script: str) -> int:
        answer = self.larder("--json", "job", "submit", *options, "--", "sh", "-c", script)
        return json.loads(answer)["jobs"][0]["id"]

    def refusal(self, *options: object, script: str) -> str:
        """Why a submission is refused."""
        return self.larder("job", "submit", *options, "--", "sh", "-c", script, status=1)

    def job(self, job: object) -> dict:
        return json.loads(self.larder("--json", "job", "show", job))

    def check_agent(self) -> None:
        assert self.agent is None or self.agent.poll() is None, (self.directory / "agent.log").read_text()

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Waits until `holds`. Fails if the agent has died, or after a time that no busy machine needs."""
        gives_up = time.monotonic() + 300
        while not holds():
            self.check_agent()
            assert time.monotonic() < gives_up, what
            time.sleep(0.02)

    def wait(self, job: object, state: str) -> dict:
        def reached() -> bool:
            now = self.job(job)["state"]
            assert now == state or now not in ENDED, self.job(job)
            return now == state

        self.until(reached, f"{job} is not {state}")
        return self.job(job)

    def wait_for_log(self, job: object, text: str) -> None:
        self.until(lambda: any(text in entry["text"] for entry in self.job(job)["log"]), text)

    def wait_for(self, file: str) -> None:
        self.until((self.directory / file).exists, file)

    def attempt(self, job: int, attempt: int = 1) -> pathlib.Path:
        """The agent's directory of an attempt."""
        (found,) = self.agent_directory.glob(f"*/{job}.{attempt}")
        return found

    def output(self, job: int, attempt: int = 1) -> str:
        if self.engine == "local":
            return pathlib.Path(self.job(job)["output"]).read_text()
        ranks = sorted(self.attempt(job, attempt).glob("*/output"))
        return "".join(file.read_text() for file in ranks)

    def processes(self) -> list[int]:
        """The processes of all attempts: their working directory is below ours, or was. The runners of the local engine
        run elsewhere, and write the ends of attempts into our directory."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                where = os.readlink(process / "cwd")
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            is_runner = words[0].endswith("larder-runner") and any(str(self.directory) in word for word in words)
            if is_runner or where.startswith(str(self.directory)):
                found.append(int(process.name))
        return found

    def end(self) -> None:
        self.kill_agent()
        if self.allocator is not None:
            self.allocator.kill()
        while left := self.processes():
            for process in left:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)


class SlurmRuns(Runs):
    """Jobs come by sbatch, and Larder decides about them. Options of `larder job submit` become those of sbatch."""

    def __init__(self, programs: pathlib.Path, directory: pathlib.Path, repository: pathlib.Path) -> None:
        super().__init__(programs, directory, repository, "slurm")
        self.repository = repository
        self.site: PlaceSite | None = None
        self.slurm_jobs: dict[int, str] = {}

    def start(self, *options: str, agent: bool = True) -> Runs:
        self.options = options
        if self.site is None:
            self.site = PlaceSite(self.programs, self.repository, self.directory, *options, nodes=2, gpus=4, agent=agent)
        else:
            self.site.start_allocator(*options)
        self.allocator = self.site.allocator
        self.agent = self.site.agent
        return self

    def queue_record(self) -> pathlib.Path:
        return self.directory / "queue" / "queue"

    def submit(self, *options: object, script: str) -> int:
        ran = self._sbatch(*options, script=script)
        assert ran.returncode == 0, ran.stderr
        job = ran.stdout.strip()
        self.site.until(lambda: self.site.larder(job), job)
        number = int(self.site.larder(job)["id"])
        self.slurm_jobs[number] = job
        return number

    def refusal(self, *options: object, script: str) -> str:
        ran = self._sbatch(*options, script=script)
        if ran.returncode != 0:
            return ran.stderr
        job = ran.stdout.strip()
        self.until(lambda: ";" in self.site.field(job, "AdminComment"), f"{job} is not refused")
        return self.site.field(job, "AdminComment")

    def start_agent(self) -> None:
        if self.agent is None:
            self.site.start_agent()
            self.agent = self.site.agent

    def kill_agent(self) -> None:
        if self.site is not None:
            self.site.kill_agent()
        self.agent = None

    def _sbatch(self, *options: object, script: str) -> subprocess.CompletedProcess[str]:
        given = dict(zip(map(str, options[::2]), map(str, options[1::2])))
        gpus = int(given.pop("--gpus", "1"))
        nodes = (gpus + 3) // 4
        asked = [f"--chdir={self.directory}", f"--nodes={nodes}"]
        if name := given.pop("--name", ""):
            asked.append(f"--job-name={name}")
        if variable := given.pop("--env", ""):
            asked.append(f"--export=ALL,{variable}")
        line = " ".join(f"{option.removeprefix('--')}={value}" for option, value in given.items())
        return self.site.sbatch(script, *asked, line=line, user="root", gpus=gpus // nodes)

    def output(self, job: int, attempt: int = 1) -> str:
        return (self.directory / f"slurm-{self.slurm_jobs[job]}.out").read_text()

    def end(self) -> None:
        if self.site is not None:
            self.site.stop()
        super().end()


class KubernetesRuns(Runs):
    """Jobs are gated Jobs of Kubernetes. All cases share its control plane."""

    def __init__(
        self, programs: pathlib.Path, directory: pathlib.Path, repository: pathlib.Path, cluster: RunCluster
    ) -> None:
        self.cluster = cluster
        super().__init__(programs, directory, repository, "kubernetes")
        self.names: dict[int, str] = {}
        self.undo: dict[str, Callable[[], None]] = {}  # of what steers the cluster
        self.agent_is_away = False

    def start(self, *options: str, agent: bool = True) -> Runs:
        first = self.allocator is None
        self.options = options
        self.allocator = Allocator(
            self.programs, self.directory, "--scheduler.directory", str(self.directory / "jobs"), *NODES,
            "--scheduler.engine", "agent", *options,
        )  # fmt: skip
        if first:
            self.cluster.begin(self.allocator)
        return self

    def submit(self, *options: object, script: str) -> int:
        name = self.cluster.run(self.directory, script, tuple(map(str, options)))
        found: list[int] = []

        def queued() -> bool:
            answer = self.allocator.ask("GET", f"/v1/queue/{name}")
            found.extend([answer.json()["id"]] if answer.status == 200 else [])
            return bool(found)

        self.until(queued, f"{name} is not in the queue")
        self.names[found[0]] = name.removeprefix("kubernetes-default.")
        return found[0]

    def refusal(self, *options: object, script: str) -> str:
        name = self.cluster.run(self.directory, script, tuple(map(str, options))).removeprefix("kubernetes-default.")
        self.until(lambda: self.cluster.annotation(name, "larder.io/refused"), f"{name} is not refused")
        return self.cluster.annotation(name, "larder.io/refused")

    def start_agent(self) -> None:
        self.agent_is_away = False
        if not self.cluster.controllers["c1"].runs():
            self.cluster.controllers["c1"].start()

    def kill_agent(self) -> None:
        self.agent_is_away = True
        if "c1" in self.cluster.controllers:
            self.cluster.controllers["c1"].kill()

    def nodes(self, **kinds: str) -> None:
        self.cluster.kubelet.lost_nodes = frozenset(name for name, kind in kinds.items() if kind == "node_lost")

    def hold_resizes(self) -> None:
        """Tasks that are asked to end stay, and the second pods of Jobs keep their gates."""
        (self.directory / "linger").touch()
        self.cluster.hold_second_pods()
        self.undo["hold"] = self.cluster.release

    def go_on(self) -> None:
        (self.directory / "linger").unlink()
        self.undo.pop("hold")()

    def refuse_resizes(self, reason: str) -> None:
        if not reason:
            return self.undo.pop("refuse")()
        self.cluster.refuse_sizes(reason)
        self.undo["refuse"] = self.cluster.allow_sizes
        return None

    def is_resize_told(self, job: int) -> bool:
        wanted, done, _ = (self.cluster.annotation(self.names[job], "larder.io/resize") or "0 0 0").split()
        return int(wanted) > int(done)

    def check_agent(self) -> None:
        assert self.cluster.kubelet.failure is None, self.cluster.kubelet.failure
        if self.agent_is_away:
            return
        controller = self.cluster.controllers["c1"]
        controller.start_if_replaced()
        assert controller.runs(), self.cluster.logs()

    def output(self, job: int, attempt: int = 1) -> str:
        return "".join(log.read_text() for log in sorted(self.directory.glob(f"{self.names[job]}-*.log")))

    def end(self) -> None:
        (self.directory / "linger").unlink(missing_ok=True)
        self.nodes()
        try:
            for undo in self.undo.values():
                undo()
            if self.allocator is not None:
                self.cluster.finish()
        finally:
            super().end()


@pytest.fixture(scope="module")
def run_cluster(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunCluster]:
    started = RunCluster(
        larder_bin, kubernetes.build_larder_kubernetes(), repository, tmp_path_factory.mktemp("k")
    )
    yield started
    started.stop()


def runs_of(engine: str, larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path) -> Iterator[Runs]:
    if engine == "slurm" and os.geteuid() != 0:
        pytest.skip("only root can run a Slurm for several users")
    made = SlurmRuns(larder_bin, tmp_path, repository) if engine == "slurm" else Runs(larder_bin, tmp_path, repository, engine)
    yield made
    made.end()


on_kubernetes = pytest.param("kubernetes", marks=[
    pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING), pytest.mark.control_plane,
])  # fmt: skip


def runs_for(
    request: pytest.FixtureRequest, larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path
) -> Iterator[Runs]:
    if request.param == "kubernetes":
        made = KubernetesRuns(larder_bin, tmp_path, repository, request.getfixturevalue("run_cluster"))
        yield made
        made.end()
        return
    yield from runs_of(request.param, larder_bin, tmp_path, repository)


@pytest.fixture(params=["local", "agent", "slurm", on_kubernetes])
def engine(
    request: pytest.FixtureRequest, larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path
) -> Iterator[Runs]:
    yield from runs_for(request, larder_bin, tmp_path, repository)


@pytest.fixture(params=["agent", on_kubernetes])
def resizing(
    request: pytest.FixtureRequest, larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path
) -> Iterator[Runs]:
    """The engines that resize jobs."""
    yield from runs_for(request, larder_bin, tmp_path, repository)


@pytest.fixture
def agent(larder_bin: pathlib.Path, tmp_path: pathlib.Path, repository: pathlib.Path) -> Iterator[Runs]:
    yield from runs_of("agent", larder_bin, tmp_path, repository)
