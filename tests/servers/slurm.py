#!/usr/bin/python3
"""slurm.py DIRECTORY: runs a Slurm cluster on loopback ports that the kernel picks: munged, slurmctld and one slurmd for
each of --nodes, which share this machine. Jobs may run as any user.

Takes its configuration from --etc, as /etc/slurm: slurm.conf and the files beside it. Its own settings replace those of
the same names in slurm.conf.

With --accounting it also runs slurmdbd on a MariaDB, which limits what jobs may use. Each --accounting is a command of
sacctmgr, such as "add account red".

Prints `conf`, the value of SLURM_CONF. Answers lines on standard input: {"do": "restart"} ends slurmctld and starts it
again; {"do": "kill", "node": "n1"} kills a slurmd, whose jobs live on; {"do": "start", "node": "n1"} starts it again.
Ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import program

CONFIGURATION = """\
ClusterName=larder
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={directory}/munge.sock
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmdSpoolDir={directory}/spool-%n
StateSaveLocation={directory}/state
SlurmUser=root
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
GresTypes=gpu
"""

ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={directory}/munge.sock
AccountingStorageEnforce=limits,qos
AccountingStorageTRES=gres/gpu
"""

DATABASE_DAEMON = """\
AuthType=auth/munge
AuthInfo=socket={directory}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
PidFile={directory}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""


class Slurm:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._directory: pathlib.Path = arguments.directory
        self.conf = self._directory / "etc" / "slurm.conf"
        self._nodes = [f"n{number}" for number in range(1, arguments.nodes + 1)]
        self._environment = os.environ | {"SLURM_CONF": str(self.conf)}
        self._children: list[program.Child] = []
        self._accounting: list[str] = arguments.accounting
        self._proctrack: str = arguments.proctrack
        self._write(arguments.etc, arguments.gpus, arguments.partitions.split(","))

    def _write(self, given: pathlib.Path, gpus: int, partitions: list[str]) -> None:
        shutil.copytree(given, self.conf.parent)
        for name in ("state", "munge", *(f"spool-{node}" for node in self._nodes)):
            (self._directory / name).mkdir()
        (self._directory / "munge").chmod(0o700)
        key = self._directory / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        self._held = [program.hold_port() for _ in range(len(self._nodes) + 3)]
        port, self._database_port, self._database_daemon_port, *ports = [one.getsockname()[1] for one in self._held]
        text = CONFIGURATION.format(
            host=host, port=port, directory=self._directory, proctrack=self._proctrack
        )
        if self._accounting:
            text += ACCOUNTING.format(directory=self._directory, port=self._database_daemon_port)
        self._ports = dict(zip(self._nodes, ports))
        for node, node_port in self._ports.items():
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=4 Gres=gpu:{gpus}\n"
        for number, partition in enumerate(partitions):
            default = "YES" if number == 0 else "NO"
            name, _, nodes = partition.partition(":")
            nodes = nodes.replace("+", ",") or ",".join(self._nodes)
            text += f"PartitionName={name} Nodes={nodes} Default={default} State=UP\n"
        own = {line.split("=")[0] for line in text.splitlines()}
        kept = [line for line in self.conf.read_text().splitlines() if line.split("=")[0] not in own]
        self.conf.write_text(text + "\n".join(kept) + "\n")
        gres = ""
        for number in range(gpus):
            (self._directory / f"gpu{number}").symlink_to("/dev/null")  # Slurm wants a character device
            gres += f"Name=gpu File={self._directory}/gpu{number}\n"
        (self.conf.parent / "gres.conf").write_text(gres)

    def _start(self, *arguments: object) -> program.Child:
        name = pathlib.Path(str(arguments[0])).name
        child = program.Child(list(arguments), self._directory / f"{name}.log", env=self._environment)
        self._children.append(child)
        return child

    def start(self) -> None:
        munge = self._directory / "munge"
        self._start(
            "munged", "--foreground", "--force", "--key-file", munge / "key", "--socket", self._directory / "munge.sock",
            "--pid-file", munge / "pid", "--log-file", munge / "log", "--seed-file", munge / "seed",
        )  # fmt: skip
        while not (self._directory / "munge.sock").exists():
            self._wait()
        if self._accounting:
            self._start_accounting()
        self._controller = self._start("slurmctld", "-D", "-f", self.conf)
        self._slurmd = {node: self._start("slurmd", "-D", "-f", self.conf, "-N", node) for node in self._nodes}
        self._wait_until_idle()
        for command in self._accounting:  # limits of GPUs can be set once slurmctld has told slurmdbd of them
            self._change_accounts(command)

    def _start_accounting(self) -> None:
        data, password = self._directory / "database", os.urandom(16).hex()
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"],
            check=True, capture_output=True,
        )  # fmt: skip
        first = self._directory / "database.sql"
        first.touch(0o600)
        first.write_text(
            f"CREATE DATABASE slurm;\nCREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';\n"
            "GRANT ALL ON slurm.* TO slurm@'127.0.0.1';\n"
        )
        self._start(
            "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={self._directory}/database.sock",
            "--bind-address=127.0.0.1", f"--port={self._database_port}", f"--init-file={first}",
        )  # fmt: skip
        self._wait_for_port(self._database_port)
        settings = self.conf.parent / "slurmdbd.conf"  # slurmdbd looks for it beside slurm.conf
        settings.touch(0o600)
        settings.write_text(
            DATABASE_DAEMON.format(
                directory=self._directory, port=self._database_daemon_port, database_port=self._database_port,
                password=password,
            )
        )  # fmt: skip
        self._start("slurmdbd", "-D")
        self._wait_for_port(self._database_daemon_port)
        self._change_accounts("add cluster larder")

    def _change_accounts(self, command: str) -> None:
        ran = subprocess.run(
            ["sacctmgr", "--immediate", *command.split()], env=self._environment, capture_output=True, text=True
        )
        if ran.returncode != 0:
            sys.exit(f"sacctmgr {command}: {ran.stdout}{ran.stderr}")

    def _wait_for_port(self, port: int) -> None:
        with socket.socket() as connection:
            while connection.connect_ex(("127.0.0.1", port)) != 0:
                self._wait()

    def kill(self, node: str) -> None:
        slurmd = self._slurmd[node]
        self._children.remove(slurmd)
        slurmd.stop(signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """Starts the node's slurmd, and waits until it listens: slurmctld would tell it only later that a job has ended."""
        self._slurmd[node] = self._start("slurmd", "-D", "-f", self.conf, "-N", node)
        self._wait_for_port(self._ports[node])

    def restart(self) -> None:
        self._controller.stop()
        self._children.remove(self._controller)
        self._controller = self._start("slurmctld", "-D", "-f", self.conf)
        self._wait_until_idle()

    def _wait(self) -> None:
        for child in self._children:
            child.check()
        time.sleep(0.05)

    def _wait_until_idle(self) -> None:
        """Waits until slurmctld answers and knows that all nodes are up."""
        while True:
            ran = subprocess.run(
                ["sinfo", "-h", "-N", "-o", "%N %T"], env=self._environment, capture_output=True, text=True, check=False
            )
            # A node has a line for each of its partitions.
            states = dict(line.split() for line in ran.stdout.splitlines()).values()
            if len(states) == len(self._nodes) and all(state in ("idle", "mixed", "allocated") for state in states):
                return
            self._wait()

    def _end_jobs(self) -> None:
        """Ends the jobs that a failed test has left: they would outlive slurmd."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            jobs = subprocess.run(["squeue", "-h", "-o", "%A"], env=self._environment, capture_output=True, text=True)
            if jobs.returncode != 0 or not jobs.stdout:
                return
            subprocess.run(["scancel", *jobs.stdout.split()], env=self._environment, check=False)
            time.sleep(0.2)

    def stop(self) -> None:
        self._end_jobs()
        for child in reversed(self._children):
            child.stop()
        for held in self._held:
            held.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=2, help="of each node")
    parser.add_argument("--partitions", default="p", help="NAME, of all nodes, or NAME:NODE+NODE; the first is the default one")
    parser.add_argument(
        "--proctrack", choices=("linuxproc", "pgid"), default="linuxproc",
        help="how processes of a job are found: pgid also finds those whose parent has ended, but not over a restart of slurmd",
    )  # fmt: skip
    parser.add_argument("--accounting", action="append", default=[])
    parser.add_argument("--etc", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    program.end_on_sigterm()
    slurm = Slurm(arguments)

    def answer(line: bytes) -> str:
        match json.loads(line):
            case {"do": "restart"}:
                slurm.restart()
            case {"do": "kill", "node": str(node)}:
                slurm.kill(node)
            case {"do": "start", "node": str(node)}:
                slurm.start_node(node)
            case _:
                sys.exit(f"unknown command: {line!r}")
        return "{}"

    try:
        slurm.start()
        program.announce(conf=slurm.conf)
        program.until_input_closes(answer)
    finally:
        slurm.stop()


if __name__ == "__main__":
    main()
