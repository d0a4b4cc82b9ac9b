#!/usr/bin/python3
"""slurm.py DIRECTORY: runs a Slurm cluster on loopback ports that the kernel picks: munged, slurmctld and one slurmd for
each of --nodes. They share this machine. Jobs may run as any user, and must be submitted by one who is not root.

burst_buffer.lua is --lua; prolog and epilog are those beside it. All three find larder-slurm at --program with --config.

Prints `conf`, the value of SLURM_CONF. Answers lines on standard input: {"do": "restart"} ends slurmctld and starts it
again. Ends when its standard input is closed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
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
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmdSpoolDir={directory}/spool-%n
StateSaveLocation={directory}/state
SlurmUser=root
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MailProg=/bin/true
GresTypes=gpu
BurstBufferType=burst_buffer/lua
Prolog={directory}/etc/prolog
Epilog={directory}/etc/epilog
"""


class Slurm:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._directory: pathlib.Path = arguments.directory
        self.conf = self._directory / "etc" / "slurm.conf"
        self._nodes = [f"n{number}" for number in range(1, arguments.nodes + 1)]
        self._environment = os.environ | {
            "SLURM_CONF": str(self.conf),
            "LARDER_SLURM": str(arguments.program),
            "LARDER_SLURM_CONFIG": str(arguments.config),
        }
        self._children: list[program.Child] = []
        self._write(arguments)

    def _write(self, arguments: argparse.Namespace) -> None:
        for name in ("etc", "state", "munge", *(f"spool-{node}" for node in self._nodes)):
            (self._directory / name).mkdir()
        (self._directory / "munge").chmod(0o700)
        key = self._directory / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        held = [socket.socket() for _ in range(len(self._nodes) + 1)]  # all at once, so that no port is picked twice
        for one in held:
            one.bind(("127.0.0.1", 0))
        port, *ports = [one.getsockname()[1] for one in held]
        text = CONFIGURATION.format(host=host, port=port, directory=self._directory)
        for node, node_port in zip(self._nodes, ports):
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=4 Gres=gpu:2\n"
        self.conf.write_text(f"{text}PartitionName=p Nodes={','.join(self._nodes)} Default=YES State=UP\n")
        gres = ""
        for number in range(2):
            (self._directory / f"gpu{number}").symlink_to("/dev/null")  # Slurm wants a character device
            gres += f"Name=gpu File={self._directory}/gpu{number}\n"
        (self.conf.parent / "gres.conf").write_text(gres)
        (self.conf.parent / "burst_buffer.conf").write_text("Directive=BB_LUA\nStageInTimeout=600\n")
        (self.conf.parent / "burst_buffer.lua").symlink_to(arguments.lua)
        for name in ("prolog", "epilog"):
            # slurmd starts them with an environment of its own.
            script = self.conf.parent / name
            script.write_text(
                f"#!/bin/sh\nexport LARDER_SLURM={arguments.program} LARDER_SLURM_CONFIG={arguments.config}\n"
                f"exec {arguments.lua.parent}/{name}\n"
            )
            script.chmod(0o755)
        for one in held:
            one.close()

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
        self._controller = self._start("slurmctld", "-D", "-f", self.conf)
        for node in self._nodes:
            self._start("slurmd", "-D", "-f", self.conf, "-N", node)
        self._wait_until_idle()

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
                ["sinfo", "-h", "-N", "-o", "%T"], env=self._environment, capture_output=True, text=True, check=False
            )
            states = ran.stdout.split()
            if len(states) == len(self._nodes) and all(state in ("idle", "mixed", "allocated") for state in states):
                return
            self._wait()

    def stop(self) -> None:
        for child in reversed(self._children):
            child.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--lua", type=pathlib.Path, required=True)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--config", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    program.end_on_sigterm()
    slurm = Slurm(arguments)

    def answer(line: bytes) -> str:
        if json.loads(line) != {"do": "restart"}:
            sys.exit(f"unknown command: {line!r}")
        slurm.restart()
        return "{}"

    try:
        slurm.start()
        program.announce(conf=slurm.conf)
        program.until_input_closes(answer)
    finally:
        slurm.stop()


if __name__ == "__main__":
    main()
