#!/usr/bin/env python3
"""kubernetes_gangs.py: how long does a gang wait for its nodes if Larder places pods on a large Kubernetes?

Starts a real Kubernetes control plane with --nodes fake nodes of 8 GPUs, an allocator and a controller, and submits
--gangs Jobs of --pods pods. Prints the time from the submission of a Job until all of its pods are bound to nodes, and
the CPU time and the memory of each program. Run it from the repository, after a build and after
`tests/servers/kubernetes.py --install`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPUS = 8
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
SUBMITTERS = 4


class Plane:
    """The control plane of tests/servers/kubernetes.py, and requests to its API server."""

    def __init__(self, directory: pathlib.Path) -> None:
        directory.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "servers" / "kubernetes.py", directory],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        values = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                break
            name, _, value = line.rstrip("\n").partition("=")
            values[name] = value
        self.kubeconfig = pathlib.Path(values["kubeconfig"])
        resources = ROOT / "scheduler" / "engines" / "kubernetes" / "chart" / "crds"
        kubectl = [values["kubectl"], f"--kubeconfig={self.kubeconfig}"]
        subprocess.run([*kubectl, "apply", "-f", resources], check=True, stdout=subprocess.DEVNULL)
        found = re.search(r"127.0.0.1:(\d+)", self.kubeconfig.read_text())
        assert found
        self._port = int(found[1])
        self._context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        self._context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
        self.process = self._process.pid

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context, timeout=600)

    def ask(self, connection: http.client.HTTPSConnection, method: str, path: str, body: object = None) -> dict:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status >= 400:
            sys.exit(f"{method} {path}: {answer.decode()}")
        parsed: dict = json.loads(answer)
        return parsed

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Bound:
    """Watches pods, and notes when the last pod of each Job was bound."""

    def __init__(self, plane: Plane, gangs: int, pods: int) -> None:
        self.at: dict[str, float] = {}
        self._gangs = gangs
        self._pods = pods
        self._bound: dict[str, set[str]] = {}
        self._plane = plane
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Watches. The API server ends a watch that is slow; then all pods are listed before the next."""
        path = "/api/v1/namespaces/default/pods"
        while len(self.at) < self._gangs:
            connection = self._plane.connect()
            listed = self._plane.ask(connection, "GET", path)
            for pod in listed["items"]:
                self._take(pod)
            version = listed["metadata"]["resourceVersion"]
            connection.request("GET", f"{path}?watch=1&resourceVersion={version}")
            response = connection.getresponse()
            while line := response.readline():
                changed = json.loads(line)
                if changed["type"] == "ERROR":
                    break
                self._take(changed["object"])
            connection.close()

    def _take(self, pod: dict) -> None:
        job = pod["metadata"].get("labels", {}).get("job-name")
        if job is None or "nodeName" not in pod["spec"] or job in self.at:
            return
        names = self._bound.setdefault(job, set())
        names.add(pod["metadata"]["name"])
        if len(names) == self._pods:
            self.at[job] = time.time()


def job(name: str, pods: int, gpus: int) -> dict[str, object]:
    container = {"name": "train", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"restartPolicy": "Never", "schedulingGates": [{"name": "larder.io/placement"}], "containers": [container]}
    return {
        "metadata": {"name": name},
        "spec": {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": {"spec": spec}},
    }


def node(name: str) -> dict[str, object]:
    resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    labels = {"kubernetes.io/hostname": name}
    metadata = {"name": name, "annotations": {"kwok.x-k8s.io/node": "fake"}, "labels": labels}
    return {"metadata": metadata, "status": {"capacity": resources, "allocatable": resources}}


def cpu_s(process: int) -> float:
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def memory_mib(process: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else 0


def children(process: int) -> dict[str, int]:
    """The programs of the control plane, by name."""
    found = {}
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            name = pathlib.Path((directory / "cmdline").read_bytes().split(b"\0")[0].decode()).name
        except OSError:
            continue
        if parent == process:
            found[name] = int(directory.name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--gangs", type=int, default=2000)
    parser.add_argument("--pods", type=int, default=2, help="pods of each gang")
    parser.add_argument("--gpus", type=int, default=2, help="GPUs of each pod")
    parser.add_argument("--rate", type=float, default=0, help="gangs submitted a second; 0: as fast as can be")
    parser.add_argument("--policy", default="fifo-backfill")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "dev", help="directory of the build")
    arguments = parser.parse_args()
    if arguments.gangs * arguments.pods * arguments.gpus > arguments.nodes * GPUS:
        parser.error("the gangs need more GPUs than there are")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all processes are ended
    with tempfile.TemporaryDirectory(prefix="larder-gangs-", dir="/tmp") as made:
        directory = pathlib.Path(made)
        plane = Plane(directory / "plane")
        started: list[subprocess.Popen[bytes]] = []
        try:
            measure(arguments, directory, plane, started)
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()
            plane.stop()


def measure(
    arguments: argparse.Namespace, directory: pathlib.Path, plane: Plane, started: list[subprocess.Popen[bytes]]
) -> None:
    connection = plane.connect()
    names = [f"n{number:04}" for number in range(arguments.nodes)]
    for name in names:
        plane.ask(connection, "POST", "/api/v1/nodes", node(name))

    def is_ready(one: dict) -> bool:
        return ("Ready", "True") in [(said["type"], said["status"]) for said in one["status"].get("conditions", [])]

    while not all(map(is_ready, plane.ask(connection, "GET", "/api/v1/nodes")["items"])):
        time.sleep(0.5)
    config = directory / "allocator.toml"
    lines = ["[scheduler]", 'engine = "agent"', f'policy = "{arguments.policy}"']
    for name in names:
        lines += [f"[scheduler.node.{name}]", f"gpus = {GPUS}"]
    config.write_text("\n".join(lines) + "\n")
    socket = directory / "allocator.sock"
    with open(directory / "allocator.log", "wb") as log:
        allocator = subprocess.Popen(
            [arguments.build / "bin" / "larder-allocator", "--socket", socket, "--state", directory / "state",
             "--remote-bandwidth", "1 GB/s", "--config", config],
            stdout=log, stderr=log,
        )  # fmt: skip
    started.append(allocator)
    while not socket.exists():
        time.sleep(0.05)
    controller_log = directory / "controller.log"
    with open(controller_log, "wb") as log:
        controller = subprocess.Popen(
            [ROOT / "build" / "kubernetes" / "larder-kubernetes", "controller", f"--allocator={socket}", "--place",
             "--leader-election=false"],
            env=os.environ | {"KUBECONFIG": str(plane.kubeconfig)}, stdout=log, stderr=log,
        )  # fmt: skip
    started.append(controller)
    while b"attached" not in controller_log.read_bytes():
        if controller.poll() is not None:
            sys.exit(controller_log.read_text())
        time.sleep(0.05)
    programs = {"larder-allocator": allocator.pid, "larder-kubernetes": controller.pid} | children(plane.process)
    before = {name: cpu_s(process) for name, process in programs.items()}
    bound = Bound(plane, arguments.gangs, arguments.pods)
    submitted: dict[str, float] = {}
    begin = time.time()

    def submit(first: int) -> None:
        own = plane.connect()
        for number in range(first, arguments.gangs, SUBMITTERS):
            if arguments.rate:
                time.sleep(max(0, begin + number / arguments.rate - time.time()))
            name = f"gang-{number:04}"
            submitted[name] = time.time()
            plane.ask(own, "POST", "/apis/batch/v1/namespaces/default/jobs", job(name, arguments.pods, arguments.gpus))

    with concurrent.futures.ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(submit, range(SUBMITTERS)))
    submitting_s = time.time() - begin
    while len(bound.at) < arguments.gangs:
        if controller.poll() is not None or allocator.poll() is not None:
            sys.exit(controller_log.read_text()[-4000:])
        time.sleep(0.1)
    all_s = time.time() - begin
    waits = sorted(bound.at[name] - at for name, at in submitted.items())
    print(f"{arguments.gangs} gangs of {arguments.pods} pods of {arguments.gpus} GPUs, {arguments.nodes} nodes")
    print(f"submitted in {submitting_s:.1f} s, all bound after {all_s:.1f} s")
    print(
        f"from submission to all pods bound: p50 {statistics.median(waits):.2f} s, "
        f"p99 {waits[int(0.99 * (len(waits) - 1))]:.2f} s"
    )
    print(f"{'program':<24} {'CPU s':>7} {'cores':>6} {'MiB':>6}")
    for name, process in programs.items():
        used = cpu_s(process) - before[name]
        print(f"{name:<24} {used:>7.1f} {used / all_s:>6.2f} {memory_mib(process):>6.0f}")
    for process in (controller, allocator):
        if process.poll() is not None:
            sys.exit("a program has ended")


if __name__ == "__main__":
    main()
