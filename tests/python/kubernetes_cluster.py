"""A Kubernetes with Larder on it: a real control plane with fake nodes, a real allocator, and real daemons."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable

from allocator_process import Allocator
from conftest import Daemon, write_tree
from program import hold_port
from servers import ServerProgram

NAMESPACE = "larder"
# Nodes with a daemon, and one without.
NODES = ("n1", "n2")
EMPTY_NODE = "n3"
GPUS = 8
LEASE_S = 10  # of the controller that acts


class Mode:
    """A process of larder-kubernetes in one of its modes. `end` and `kill` signal this process and no other."""

    def __init__(self, program: pathlib.Path, log: pathlib.Path, kubeconfig: pathlib.Path, *arguments: object) -> None:
        self._command = [str(program), *map(str, arguments)]
        self._environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start_if_replaced(self) -> None:
        """Starts the program again, as the kubelet does, if it has ended because it did not renew its lease in time."""
        if self._process is None or self._process.poll() is None:
            return
        with open(self.log, "rb") as log:
            log.seek(self._log_start)
            text = log.read()
            if b"leader election lost" in text or b"another controller leads" in text:
                self.start()

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.end(signal.SIGKILL)


class Cluster:
    """The programs act with the rights of the chart's service accounts, as they do in pods."""

    chart_options: tuple[str, ...] = ()
    daemon_disk = "256 MiB"
    controller_options: tuple[str, ...] = ()

    def _before_chart(self) -> None:
        """Installs what the chart needs."""

    def __init__(
        self, programs: pathlib.Path, larder_kubernetes: pathlib.Path, repository: pathlib.Path, directory: pathlib.Path
    ) -> None:
        self.directory = directory
        self._programs = programs
        self.larder_kubernetes = larder_kubernetes
        self.chart = repository / "scheduler" / "engines" / "kubernetes" / "chart"
        self._stack = contextlib.ExitStack()
        self.controllers: dict[str, Mode] = {}
        self.nodes: dict[str, Mode] = {}
        self.daemons: dict[str, Daemon] = {}
        with contextlib.ExitStack() as started:
            started.callback(self.stop)
            self._start()
            started.pop_all()

    def _start_plane(self, nodes: tuple[str, ...]) -> None:
        (self.directory / "plane").mkdir()
        self.server = ServerProgram("kubernetes.py", self.directory / "plane")
        self._stack.callback(self.server.stop)
        self.kubeconfig = pathlib.Path(self.server.values["kubeconfig"])
        if nodes:
            self.apply(*map(self.node, nodes))
        # Until its service account is there, a namespace takes no pods.
        self.until(lambda: not self.try_kubectl("get", "serviceaccount", "default").returncode)

    def _start(self) -> None:
        self._start_plane((*NODES, EMPTY_NODE))
        self._certificate()
        self.kubectl("create", "namespace", NAMESPACE)
        self._before_chart()
        self.kubectl(
            "create", "secret", "generic", "larder-tls", f"--namespace={NAMESPACE}", "--type=kubernetes.io/tls",
            *(f"--from-file={name}={self.directory}/tls.{kind}" for name, kind in
              (("tls.crt", "crt"), ("tls.key", "key"), ("ca.crt", "crt"))),
        )  # fmt: skip
        # A directory with a short name, because a socket's path has at most 107 bytes; the policy names it.
        self.sockets = pathlib.Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="larder-", dir="/tmp")))
        self.helm("install", "larder", self.chart, "--namespace", NAMESPACE, "--set", f"node.socketDirectory={self.sockets}",
                  *self.chart_options)  # fmt: skip
        self.port: int = self._stack.enter_context(hold_port()).getsockname()[1]
        secret = self.directory / "tokens"
        secret.mkdir()
        data = self.get("secret", "larder-allocator-tokens", NAMESPACE)["data"]
        for name, text in data.items():
            (secret / name).write_bytes(base64.b64decode(text))
        # In a cluster this mode runs on beside the allocator, and signals it: here it would see those of other tests.
        self.run_mode(
            "allocator", "tokens", "--once", f"--key-file={secret}/node-key", f"--fixed-file={secret}/lines",
            f"--file={secret}/file",
        )  # fmt: skip
        self.start_allocator()
        for node in NODES:
            self._start_node(node, secret)
        self.start_controller("c1")

    def node(self, name: str, gpus: int = GPUS) -> dict[str, object]:
        resources = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"kubernetes.io/hostname": name},
            },
            "status": {"capacity": resources, "allocatable": resources},
        }

    def _certificate(self) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=allocator", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "tls.key", "-out", "tls.crt"],
            cwd=self.directory, check=True, capture_output=True,
        )  # fmt: skip

    def start_allocator(self, *options: str) -> None:
        self.allocator = Allocator(
            self._programs, self.directory, "--state", str(self.directory / "state"), "--lease", "10 s",
            "--listen", f"127.0.0.1:{self.port}", "--tls.certificate", str(self.directory / "tls.crt"),
            "--tls.key", str(self.directory / "tls.key"), "--access.tokens", str(self.directory / "tokens" / "file"),
            *options,
        )  # fmt: skip
        self._stack.callback(self.allocator.kill)

    def _start_node(self, node: str, secret: pathlib.Path) -> None:
        token = self.directory / f"{node}.token"
        self.run_mode("node", "token", f"--key-file={secret}/node-key", f"--node={node}", f"--file={token}")
        state = self.directory / node
        self.daemons[node] = Daemon(
            self._programs, state, "--socket", str(self.sockets / f"{node}.sock"), "--socket-mode", "0666",
            "--allocator.endpoint", f"https://127.0.0.1:{self.port}", "--allocator.ca", str(self.directory / "tls.crt"),
            "--allocator.token-file", str(token), "--allocator.node", node, "--allocator.gpus", str(GPUS),
            environment=os.environ | {"AWS_SHARED_CREDENTIALS_FILE": str(state / "s3-credentials")}, disk=self.daemon_disk,
        )  # fmt: skip
        self._stack.callback(self.daemons[node].end)
        self.daemons[node].start()
        self.nodes[node] = self.mode(
            "node", f"{node}-node", "node", f"--admin-socket={state}/admin.sock", f"--state-directory={state}",
            f"--namespace={NAMESPACE}", f"--node={node}", "--interval=1s",
        )  # fmt: skip

    def start_controller(self, name: str) -> Mode:
        self.controllers[name] = self.mode(
            "controller", name, "controller", f"--allocator=https://127.0.0.1:{self.port}",
            f"--allocator-ca={self.directory}/tls.crt", f"--allocator-token-file={self.directory}/tokens/operator",
            f"--leader-election-namespace={NAMESPACE}", f"--lease-duration={LEASE_S}s", "--interval=1s",
            *self.controller_options,
        )  # fmt: skip
        return self.controllers[name]

    def revive(self) -> None:
        """Starts what has ended, as the kubelet does: a controller ends when it cannot renew its lease."""
        for started in (*self.controllers.values(), *self.nodes.values()):
            if not started.runs():
                started.start()

    def mode(self, account: str, name: str, *arguments: object) -> Mode:
        started = Mode(self.larder_kubernetes, self.directory / f"{name}.log", self.account(account), *arguments)
        self._stack.callback(started.end)
        return started

    def run_mode(self, account: str, *arguments: object) -> None:
        ran = subprocess.run(
            [self.larder_kubernetes, *map(str, arguments)], env=os.environ | {"KUBECONFIG": str(self.account(account))},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr

    def account(self, component: str) -> pathlib.Path:
        """A kubeconfig with the token of a service account of the chart."""
        path = self.directory / f"{component}.kubeconfig"
        if not path.exists():
            token = self.kubectl("create", "token", f"larder-{component}", f"--namespace={NAMESPACE}").strip()
            admin = self.kubeconfig.read_text()
            user = next(line for line in admin.splitlines() if line.startswith("  user: "))
            path.write_text(admin.replace(user, f"  user: {{token: {token}}}"))
        return path

    def stop(self) -> None:
        self._stack.close()

    def kubectl(self, *arguments: object, text: str | None = None) -> str:
        ran = self.try_kubectl(*arguments, text=text)
        assert ran.returncode == 0, f"kubectl {arguments}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def try_kubectl(self, *arguments: object, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        command = [self.server.values["kubectl"], f"--kubeconfig={self.kubeconfig}", *map(str, arguments)]
        return subprocess.run(
            command, input=text or "", env=os.environ | {"HOME": str(self.directory)}, capture_output=True, text=True,
            timeout=330,
        )  # fmt: skip

    def helm(self, *arguments: object) -> str:
        ran = self.try_helm(*arguments)
        assert ran.returncode == 0, f"helm {arguments}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def try_helm(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.server.values["helm"], *map(str, arguments)],
            env=os.environ | {"HOME": str(self.directory), "KUBECONFIG": str(self.kubeconfig)},
            capture_output=True, text=True, timeout=330,
        )  # fmt: skip

    def apply(self, *objects: object) -> None:
        self.kubectl("apply", "-f", "-", text="\n---\n".join(map(json.dumps, objects)))

    def get(self, kind: str, name: str, namespace: str = "default") -> dict:
        found: dict = json.loads(self.kubectl("get", kind, name, f"--namespace={namespace}", "--output=json"))
        return found

    def delete(self, kind: str, name: str, *options: str) -> None:
        self.kubectl("delete", kind, name, *options)

    def end_pod(self, pod: str) -> None:
        """Ends the pod with success."""
        ended = json.dumps({"status": {"phase": "Succeeded"}})
        self.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={ended}")

    def add_dataset(self, name: str, url: str, **spec: object) -> None:
        self.apply(
            {
                "apiVersion": "larder.io/v1alpha1",
                "kind": "Dataset",
                "metadata": {"name": name},
                "spec": {"url": url} | {name: value for name, value in spec.items() if value is not None},
            }
        )

    def pod(self, name: str, dataset: str, node: str, gpus: int = 1, **more: object) -> dict[str, object]:
        """A pod for this node. Kubernetes binds it, if the node has so many GPUs left."""
        container = {"name": "train", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        metadata: dict[str, object] = {"name": name, "labels": {"larder.io/dataset": dataset}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata | more,
            "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]},
        }

    def add_images(self) -> None:
        """Adds the dataset "images", and waits until all nodes have it."""
        write_tree(self.directory / "images", 20, seed=3)
        self.add_dataset("images", f"file://{self.directory}/images", format="raw")
        self.until(lambda: len(self.rows("datasets").get("images", {}).get("nodes", [])) == len(NODES))

    def delete_jobs(self) -> None:
        """Deletes all Jobs and pods, and waits until the allocator knows of none."""
        self.revive()
        self.kubectl("delete", "jobs,pods", "--all", "--wait=true")
        self.until(lambda: not [name for name in self.rows("jobs") if name.startswith("kubernetes-")])

    def rows(self, kind: str) -> dict[str, dict]:
        """The allocator's datasets or jobs, by name."""
        answer = self.allocator.ask("GET", f"/v1/{kind}").json()
        assert isinstance(answer, dict)
        return {row["name"]: row for row in answer[kind]}

    def jobs(self) -> dict[str, tuple[str, list[str], int]]:
        """Dataset, nodes and GPUs of the jobs that run, as the allocator knows them."""
        return {
            name: (row["dataset"], row["nodes"], row["ranks"]) for name, row in self.rows("jobs").items() if row["running"]
        }

    def until(self, condition: Callable[[], object], limit_s: float = 300) -> None:
        """Waits until the condition holds. A busy machine may keep a controller from renewing its lease."""
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, self.logs()
            for controller in self.controllers.values():
                controller.start_if_replaced()
            time.sleep(0.05)

    def logs(self) -> str:
        """The ends of the logs, for a test that fails."""
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in self.directory.glob("*.log"))
