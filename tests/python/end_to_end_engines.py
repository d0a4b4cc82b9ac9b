"""The engines that run the jobs of end_to_end.py."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

from end_to_end import GPUS, NODES, Failure, Job, Site
from slurm_place import PlaceSite

HERE = pathlib.Path(__file__).resolve().parent
READER = HERE / "end_to_end_reader.py"
AGENT = HERE.parent / "servers" / "process_agent.py"


class Engine:
    """What runs the jobs."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def submit(self, job: Job) -> str:
        """Submits a job. Returns its name in Larder's queue."""
        raise NotImplementedError

    def waits_outside(self, name: str) -> str:
        """What a submitted job that is not in Larder's queue waits for, as `larder job why` would call it."""
        return ""

    @contextlib.contextmanager
    def refusing(self) -> Iterator[str]:
        """While it lasts, the engine refuses jobs for now, for the reason that it gives. Empty: it refuses none."""
        yield ""

    def lose(self, node: str) -> None:
        """Ends the processes of jobs on the node, and lets the engine see that the node is gone."""
        raise NotImplementedError

    def check(self) -> None:
        """Fails if a process of the engine has ended. It is called many times a second."""

    def logs(self) -> str:
        return ""

    def stop(self) -> None:
        pass

    def reader(self, job: Job) -> list[str]:
        """The command of a job."""
        return [sys.executable, str(READER), str(self.site.directory), job.dataset, str(job.rate), str(job.epochs)]


class Processes(Engine):
    """Processes of this machine, which tests/servers/process_agent.py starts as a cluster manager would."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.directory = site.directory / "agent"
        self.directory.mkdir()
        self.log = site.directory / "agent.log"
        self._write_nodes()
        with open(self.log, "ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, AGENT, site.allocator.socket, self.directory],
                stdout=log, stderr=log,
            )  # fmt: skip

    def _write_nodes(self, lost: str = "") -> None:
        new = self.directory / "nodes.new"
        new.write_text("".join(f"{node} {'node_lost' if node == lost else 'node_back'}\n" for node in NODES))
        new.rename(self.directory / "nodes")

    def submit(self, job: Job) -> str:
        after = ["--after", job.after] if job.after else []
        self.site.larder(
            "job", "submit", "--name", job.name, "--tenant", job.tenant, "--gpus", job.gpus, "--dataset", job.dataset,
            "--epochs", job.epochs, "--ideal-rate", f"{job.rate / 1e6:g} MB/s", *after, "--", *self.reader(job),
        )  # fmt: skip
        return job.name

    @contextlib.contextmanager
    def refusing(self) -> Iterator[str]:
        (self.directory / "reject").write_text("now the licence server is away")
        yield "the licence server is away"
        (self.directory / "reject").unlink()

    def lose(self, node: str) -> None:
        self._write_nodes(lost=node)

    def check(self) -> None:
        if self.agent.poll() is not None:
            raise Failure(f"the agent has ended: {self.logs()}")

    def logs(self) -> str:
        return self.log.read_text()

    def stop(self) -> None:
        self.agent.kill()
        self.agent.wait()
        for file in self.directory.glob("*/*/pid"):
            try:
                os.killpg(int(file.read_text().split()[0]), signal.SIGKILL)
            except ProcessLookupError:
                pass


class OurPlaceSite(PlaceSite):
    """A Slurm for an allocator that runs already."""

    def __init__(self, site: Site, directory: pathlib.Path) -> None:
        self.given = site.allocator
        super().__init__(site.programs, HERE.parents[1], directory, nodes=len(NODES), gpus=GPUS)

    def start_allocator(self, *options: str) -> None:
        self.allocator = self.given


class Slurm(Engine):
    """A real Slurm, with the agent of larder-slurm."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        directory = site.directory / "s"
        directory.mkdir()
        site.directory.chmod(0o755)
        directory.chmod(0o755)
        self.slurm = OurPlaceSite(site, directory)
        self.numbers: dict[str, str] = {}
        self.begin: list[str] = []  # an option of sbatch

    def submit(self, job: Job) -> str:
        command = shlex.join(self.reader(job))
        line = f"dataset={job.dataset} epochs={job.epochs} ideal-rate={job.rate / 1e6:g}MB/s"
        after = [f"--dependency=afterok:{self.numbers[job.after]}"] if job.after else []
        number = self.slurm.submit(
            f"srun {command}" if job.nodes > 1 else f"exec {command}",
            f"--account={job.tenant}", f"--nodes={job.nodes}", f"--job-name={job.name}", *after, *self.begin,
            line=line, user="root", gpus=job.gpus // job.nodes,
        )  # fmt: skip
        self.numbers[job.name] = number
        return f"slurm-{number}"

    def waits_outside(self, name: str) -> str:
        """Slurm keeps a job that waits for another one; Larder does not know it yet."""
        return "dependencies" if self.slurm.field(self.numbers[name], "Reason") == "Dependency" else ""

    @contextlib.contextmanager
    def refusing(self) -> Iterator[str]:
        self.begin = ["--begin=now+1hour"]
        yield "BeginTime"
        self.begin = []
        self.slurm.scontrol("update", f"JobId={self.numbers['refused']}", "StartTime=now")

    def lose(self, node: str) -> None:
        self.slurm.server.ask({"do": "kill", "node": node})
        for process in self._processes_of(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # slurmctld would take minutes to see that slurmd is silent.
        self.slurm.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def _processes_of(self, node: str) -> list[int]:
        """The processes of this Slurm's jobs on the node: first those that watch them, which would report their ends."""
        wanted = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.slurm.environment['SLURM_CONF']}".encode()}
        watching, found = [], []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if not wanted <= set((process / "environ").read_bytes().split(b"\0")):
                    continue
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                if pathlib.Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                    watching.append(int(parent))
            except OSError:
                continue  # it has just ended
            found.append(int(process.name))
        return watching + found

    def check(self) -> None:
        assert self.slurm.agent is not None
        if self.slurm.agent.poll() is not None:
            raise Failure(f"the agent has ended: {self.logs()}")

    def logs(self) -> str:
        return self.slurm.logs()

    def stop(self) -> None:
        self.slurm.stop()


ENGINES = {"processes": Processes, "slurm": Slurm}
