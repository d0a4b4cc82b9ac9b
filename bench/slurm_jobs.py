#!/usr/bin/env python3
"""slurm_jobs.py: what does Larder cost a Slurm that has many held jobs with a #BB_LUA line?

Starts a real Slurm, an allocator and a daemon, submits --jobs held jobs, and looks on for --seconds. Prints the CPU time
of Larder (larder-slurm and larder-allocator), of squeue and of slurmctld apart: per submitted job, and as a part of one
core while the jobs wait. With --place, the jobs are in a partition in which Larder decides, so the agent looks at Slurm
once a second, and each job is also one of Larder's queue. Run it as root from the repository, after a build.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scheduler" / "engines" / "slurm"
USER = 65534  # root may not use burst buffers
# For printf.
SCRIPT = r"#!/bin/bash\n#BB_LUA larder dataset=images cache=1MiB bandwidth=1MB/s\ntrue\n"
PLACED_SCRIPT = r"#!/bin/bash\n#LARDER dataset=images epochs=10\nsleep 100000\n"
NODES = 8
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Runs a program, and adds its CPU time and that of its children to a file.
TIMED = """#!/bin/bash
TIMEFORMAT='%3U %3S'
{{ time {program} "$@" 2>&3; }} 3>&2 2>>{times}
"""


class Site:
    def __init__(self, directory: pathlib.Path, programs: pathlib.Path, places: bool) -> None:
        self.directory = directory
        self.places = places
        self.socket = directory / "allocator.sock"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = os.environ | {"PATH": f"{directory}/bin:{os.environ['PATH']}"}
        directory.chmod(0o755)
        for name in ("bin", "etc", "slurm", "data", "jobs"):
            (directory / name).mkdir()
        for number in range(10):
            (directory / "data" / f"{number}.bin").write_bytes(os.urandom(10_000))
        self._timed("larder-slurm", programs / "larder-slurm")
        for name in ("squeue", "sinfo", "scontrol"):
            self._timed(name, pathlib.Path(shutil.which(name) or name))
        socket = self.socket
        self.allocator = self._start(
            programs / "larder-allocator", "--socket", socket, "--state", directory / "state", "--remote-bandwidth", "1 GB/s",
            *(self._queue_options() if places else ()),
        )  # fmt: skip
        self.until(socket.exists)
        node = directory / "node"
        self._start(
            programs / "larderd", "--state-directory", node, "--memory", "256MiB", "--disk", "0",
            "--allocator.endpoint", socket, "--allocator.node", "n1",
        )  # fmt: skip
        self.until((node / "admin.sock").exists)
        subprocess.run(
            [programs / "larder", "--admin-socket", node / "admin.sock", "dataset", "add", "images", directory / "data"], check=True
        )
        config = directory / "slurm.toml"
        config.write_text(f'limit = "10 s"\npartitions = "p"\n[allocator]\nendpoint = "{socket}"\n')
        self.environment["LARDER_SLURM_CONFIG"] = str(config)
        self.until(lambda: "images" in self._run(programs / "larder-slurm", "status"))
        etc = directory / "etc"
        (etc / "burst_buffer.lua").symlink_to(SCRIPTS / "burst_buffer.lua")
        partitions = '"p"' if places else ""
        (etc / "job_submit.lua").write_text(f'dofile("{SCRIPTS}/job_submit.lua")\nlarder_partitions = {{{partitions}}}\n')
        (etc / "burst_buffer.conf").write_text("Directive=BB_LUA\n")
        (etc / "slurm.conf").write_text(
            "BurstBufferType=burst_buffer/lua\nJobSubmitPlugins=lua\nLicenses=remoteio:1000\nMaxJobCount=100000\n"
        )
        self._slurm = self._start(
            sys.executable, ROOT / "tests" / "servers" / "slurm.py", directory / "slurm", "--nodes", NODES, "--etc", etc,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._slurm.stdout is not None
        for line in self._slurm.stdout:
            if line == b"ready\n":
                break
            name, _, value = line.decode().strip().partition("=")
            if name == "conf":
                self.environment["SLURM_CONF"] = value
        self._controller = int((directory / "slurm" / "slurmctld.pid").read_text())
        if places:
            self.agent = self._start(programs / "larder-slurm", "place")

    def _queue_options(self) -> list[object]:
        gpus = [word for number in range(1, NODES + 1) for word in (f"--scheduler.node.n{number}.gpus", "2")]
        return ["--scheduler.engine", "agent", "--scheduler.directory", self.directory / "queue", *gpus]

    def _timed(self, name: str, program: pathlib.Path) -> None:
        times = self.directory / f"{name}.times"
        times.touch()
        wrapper = self.directory / "bin" / name
        wrapper.write_text(TIMED.format(program=program, times=times))
        wrapper.chmod(0o755)

    def _start(self, *command: object, **options: object) -> subprocess.Popen[bytes]:
        with open(self.directory / "log", "ab") as log:
            options = {"stdout": log, "stderr": log} | options
            process = subprocess.Popen(list(map(str, command)), env=self.environment, **options)  # type: ignore[call-overload]
        self.processes.append(process)
        return process

    def _run(self, *command: object, user: int = 0) -> str:
        return subprocess.run(
            list(map(str, command)), env=self.environment, capture_output=True, text=True, check=False, user=user, group=user,
            extra_groups=[], cwd=self.directory / "jobs",
        ).stdout  # fmt: skip

    def until(self, condition: object) -> None:
        while not condition():  # type: ignore[operator]
            for process in self.processes:
                if process.poll() is not None:
                    sys.exit((self.directory / "log").read_text()[-4000:])
            time.sleep(0.05)

    def submit(self, jobs: int) -> None:
        """Submits held jobs, each with a script of its own."""
        script = PLACED_SCRIPT if self.places else SCRIPT
        options = "--gpus-per-node=2" if self.places else "--hold"
        loop = f"for ((i = 0; i < $1; i++)); do printf '{script}' | sbatch --quiet {options} --output=/dev/null || exit 1; done"
        self._run("bash", "-c", loop, "bash", jobs, user=USER)

    def jobs(self) -> int:
        """The number of job records that Slurm has."""
        return len(self._run("/usr/bin/squeue", "-h", "-o", "%A").split())

    def queued(self) -> int:
        """The number of jobs in Larder's queue."""
        answer = self._run("curl", "--silent", "--unix-socket", self.socket, "http://larder/v1/status")
        status = json.loads(answer)
        return int(status["jobs_waiting"]) + int(status["jobs_running"])

    def cpu_s(self) -> dict[str, float]:
        """The CPU times up to now."""
        times = {}
        for name in ("larder-slurm", "squeue", "sinfo", "scontrol"):
            times[name] = sum(map(float, (self.directory / f"{name}.times").read_text().split()))
        running = [("larder-allocator", self.allocator.pid), ("slurmctld", self._controller)]
        if self.places:
            running.append(("agent", self.agent.pid))
        for name, pid in running:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            times[name] = (int(fields[11]) + int(fields[12])) * TICK_S
        if not self.places:
            times["larder-slurm"] -= times["squeue"]  # its child
        times["larder"] = times["larder-slurm"] + times["larder-allocator"] + times.get("agent", 0)
        return times

    def queue_s(self) -> float:
        """The time that one squeue takes, as its user sees it."""
        begun = time.monotonic()
        self._run("/usr/bin/squeue", "-h", "--states=all", "-o", "%A %T")
        return time.monotonic() - begun

    def stop(self) -> None:
        if hasattr(self, "_slurm") and self._slurm.stdin is not None:
            # Its own end cancels all jobs in one command, which is too long with so many.
            self._run("scancel", "--user", USER)
            self._slurm.stdin.close()
            self._slurm.wait()
        for process in reversed(self.processes):
            process.terminate()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60, help="how long to look on while the jobs wait")
    parser.add_argument("--place", action="store_true", help="Larder decides about the jobs")
    parser.add_argument("--programs", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build" / "dev" / "bin")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="larder-slurm-") as name:
        site = Site(pathlib.Path(name), arguments.programs, arguments.place)
        try:
            before = site.cpu_s()
            begun = time.monotonic()
            site.submit(arguments.jobs)
            submitted_s = time.monotonic() - begun
            jobs = site.jobs()
            if arguments.place:
                site.until(lambda: site.queued() == jobs)
            waiting = site.cpu_s()
            begun = time.monotonic()
            time.sleep(arguments.seconds)
            watched_s = time.monotonic() - begun
            after = site.cpu_s()
            queue_s = site.queue_s()
        finally:
            site.stop()
    ours = ("agent", "larder-allocator") if arguments.place else ("larder", "larder-slurm", "larder-allocator")
    theirs = ("squeue", "sinfo", "scontrol", "slurmctld") if arguments.place else ("squeue", "slurmctld")
    shown = (*ours, *theirs)
    answer = {
        "jobs": jobs,
        "submitted_per_s": round(jobs / submitted_s, 1),
        "submit_cpu_ms_per_job": {part: round(1000 * (waiting[part] - before[part]) / max(1, jobs), 2) for part in shown},
        "waiting_percent_of_a_core": {part: round(100 * (after[part] - waiting[part]) / watched_s, 2) for part in shown},
        "one_squeue_s": round(queue_s, 3),
    }
    if arguments.json:
        print(json.dumps(answer))
        return
    print(f"{jobs} held jobs, submitted {answer['submitted_per_s']} a second; one squeue of all takes {queue_s:.3f} s")
    print(f"{'':18}{'CPU per submission':>20}{'while they wait':>18}")
    for part in shown:
        print(f"{part:18}{answer['submit_cpu_ms_per_job'][part]:>17} ms{answer['waiting_percent_of_a_core'][part]:>11} % core")


if __name__ == "__main__":
    main()
