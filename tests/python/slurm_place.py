"""A Slurm in whose partition "p" Larder decides, with partition "q" beside it: an allocator, and the agent of
larder-slurm. Each process is ended by its own pid."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from allocator_process import Allocator
from servers import ServerProgram

USERS = {"nobody": 65534, "daemon": 1}
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT")


class PlaceSite:
    def __init__(
        self, programs: pathlib.Path, repository: pathlib.Path, directory: pathlib.Path, *options: str,
        nodes: int = 8, gpus: int = 2, agent: bool = True, look: str = "200 ms", agent_has_nodes: bool = False,
        accounting: tuple[str, ...] = (), partitions: str = "p,q", config: str = "", names_nodes: bool = True,
    ) -> None:  # fmt: skip
        """`accounting`: commands of sacctmgr. `partitions`: as slurm.py takes them; Larder decides in those whose names begin
        with p. `config`: more of the agent's config."""
        self.programs = programs
        self.repository = repository
        self.directory = directory
        self.agent: subprocess.Popen[bytes] | None = None
        self.server: ServerProgram | None = None
        self.allocator: Allocator | None = None
        self._nodes = tuple(word for n in range(1, nodes + 1) for word in (f"--scheduler.node.n{n}.gpus", str(gpus)))
        if not names_nodes:  # cells do
            self._nodes = ()
        if agent_has_nodes:
            self._nodes = ("--scheduler.nodes", "agent")
        self.jobs = directory / "jobs"
        self.jobs.mkdir()
        self.jobs.chmod(0o1777)
        self.config = directory / "slurm.toml"
        names = [partition.partition(":")[0] for partition in partitions.split(",")]
        self._larders = [name for name in names if name.startswith("p")]
        try:
            self.start_allocator(*options)
            self.config.write_text(
                f'partitions = "{" ".join(self._larders)}"\nsocket = "{directory}/larderd.sock"\nlimit = "10 s"\nlook = "{look}"\n'
                f'[allocator]\nendpoint = "{self.allocator.socket}"\n{config}'
            )
            self.server = ServerProgram(
                "slurm.py", directory / "slurm", "--nodes", nodes, "--gpus", gpus, "--partitions", partitions,
                "--proctrack", "pgid", "--etc", self._write_etc(), *(word for command in accounting for word in ("--accounting", command)),
            )  # fmt: skip
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "SLURM_"))}
            self.environment = kept | {"SLURM_CONF": self.server.values["conf"], "HOME": "/tmp"}
            if agent:
                self.start_agent()
        except BaseException:
            self.stop()
            raise

    def _write_etc(self) -> pathlib.Path:
        scripts = self.repository / "scheduler" / "engines" / "slurm"
        (self.directory / "slurm").mkdir()
        etc = self.directory / "etc"
        etc.mkdir()
        names = ", ".join(f'"{name}"' for name in self._larders)
        (etc / "job_submit.lua").write_text(f'dofile("{scripts}/job_submit.lua")\nlarder_partitions = {{{names}}}\n')
        prolog = self.directory / "task_prolog"  # slurmd gives it an environment of its own
        prolog.write_text(
            f"#!/bin/sh\nexport LARDER_SLURM={self.programs}/larder-slurm LARDER_SLURM_CONFIG={self.config}\n"
            f"exec {scripts}/task_prolog\n"
        )
        prolog.chmod(0o755)
        (etc / "slurm.conf").write_text(
            f"JobSubmitPlugins=lua\nTaskProlog={prolog}\nMinJobAge=3600\nKillWait=2\nMaxJobCount=100000\n"
        )
        return etc

    def start_allocator(self, *options: str) -> None:
        self.options = options
        self.allocator = Allocator(
            self.programs, self.directory, "--scheduler.directory", str(self.directory / "queue"),
            "--state", str(self.directory / "state"), "--scheduler.engine", "agent", *self._nodes, *options,
        )  # fmt: skip

    def restart_allocator(self, *options: str) -> None:
        self.allocator.kill()
        self.start_allocator(*(options or self.options))

    def start_agent(self) -> None:
        with open(self.directory / "agent.log", "ab") as log:
            self.agent = subprocess.Popen(
                # As larder-slurm.service restricts it.
                ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs",
                 self.programs / "larder-slurm", "--config", self.config, "place"],
                stdout=log, stderr=log, env=self.environment,
            )  # fmt: skip

    def kill_agent(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
            self.agent = None

    def stop(self) -> None:
        self.kill_agent()
        if self.server is not None:
            self.server.stop()
        if self.allocator is not None:
            self.allocator.kill()

    def run(self, *command: object, user: str = "nobody") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, command)), env=self.environment, cwd=self.jobs, capture_output=True, text=True,
            user=USERS.get(user, 0), group=USERS.get(user, 0), extra_groups=[], timeout=300, check=False,
        )  # fmt: skip

    def scontrol(self, *arguments: object) -> str:
        ran = self.run("scontrol", *arguments, user="root")
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def sbatch(
        self, command: str, *options: object, line: str = "", user: str = "nobody", gpus: int = 1
    ) -> "subprocess.CompletedProcess[str]":
        script = self.jobs / f"{user}.sh"
        script.write_text(f"#!/bin/bash\n{line and '#LARDER ' + line}\n{command}\n")
        script.chmod(0o755)
        asked = [f"--gpus-per-node={gpus}"] if gpus else []
        return self.run("sbatch", "--parsable", *asked, *options, script, user=user)

    def submit(self, command: str, *options: object, line: str = "", user: str = "nobody", gpus: int = 1) -> str:
        ran = self.sbatch(command, *options, line=line, user=user, gpus=gpus)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    def shown(self, job: str) -> str:
        return self.run("scontrol", "-o", "show", "job", job, user="root").stdout

    def field(self, job: str, name: str) -> str:
        found = re.search(rf"\b{name}=(\S+)", self.shown(job))
        return found[1] if found else ""

    def state(self, job: str) -> str:
        return self.field(job, "JobState")

    def larder(self, job: str) -> dict:
        """The Larder job of a Slurm job; empty: there is none."""
        answer = self.allocator.ask("GET", f"/v1/queue/slurm-{job}")
        return answer.json() if answer.status == 200 else {}

    def output(self, job: str) -> str:
        return (self.jobs / f"slurm-{job}.out").read_text()

    def until(self, holds: Callable[[], object], what: object = "") -> None:
        """Waits until `holds`. Fails if the agent has died, or after a time that no busy machine needs."""
        end = time.monotonic() + 300
        while not holds():
            assert self.agent is None or self.agent.poll() is None, self.logs()
            assert time.monotonic() < end, f"{what}\n{self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        agent = self.directory / "agent.log"
        queue = json.dumps(self.allocator.ask("GET", "/v1/queue").json(), indent=1)
        slurm = (self.directory / "slurm" / "slurmctld.log").read_text()[-3000:]
        return "\n".join((agent.read_text() if agent.exists() else "", queue, slurm, self.shown("")))

    def waits(self, job: str, state: str) -> None:
        def reached() -> bool:
            now = self.state(job)
            assert now == state or now not in ENDED, f"{job} is {now}\n{self.logs()}"
            return now == state

        self.until(reached, f"{job} is not {state}")

    def waits_in_larder(self, job: str, state: str) -> dict:
        self.until(lambda: self.larder(job).get("state") == state, f"slurm-{job} is not {state}")
        return self.larder(job)

    def log_of(self, job: str) -> str:
        return "\n".join(entry["text"] for entry in self.larder(job).get("log", []))

    def clear(self) -> None:
        """Cancels all jobs, and waits until Larder has none."""
        jobs = self.run("squeue", "-h", "-o", "%A", user="root").stdout.split()
        if jobs:
            self.run("scancel", *jobs, user="root")
        self.until(lambda: not self.run("squeue", "-h", user="root").stdout)
        if self.agent is not None:
            self.until(lambda: not self.allocator.ask("GET", "/v1/queue").json()["jobs"])

    def signal_agent(self, number: signal.Signals) -> None:
        assert self.agent is not None
        self.agent.send_signal(number)


@pytest.fixture
def site(started: PlaceSite) -> Iterator[PlaceSite]:
    """The site that a test file has in its fixture `started`, without jobs of earlier tests."""
    yield started
    started.clear()


def until_file(name: str) -> str:
    """A command that waits for a file in the directory of jobs."""
    return f"until [ -e {name} ]; do sleep 0.05; done"
