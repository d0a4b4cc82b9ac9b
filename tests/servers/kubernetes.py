#!/usr/bin/python3
"""kubernetes.py DIRECTORY: runs the control plane of a Kubernetes cluster on loopback ports that the kernel picks: etcd,
kube-apiserver, kube-controller-manager, kube-scheduler, and kwok, which fakes nodes and the life of their pods.

No container runs. A pod with a node is Running at once, and ends after the time in its annotation "larder.io/runs-for",
such as "2s"; without it, when it is deleted. Nodes are fake if they have the annotation "kwok.x-k8s.io/node: fake".

Prints `kubeconfig`, of an administrator, and `kubectl`. Answers lines on standard input: {"do": "stop", "name": NAME}
ends a program of the control plane, {"do": "start", "name": NAME} starts it again, {"do": "compact"} makes etcd forget
all revisions but the last. Ends when its standard input is closed.

The programs are one, which is built with Go from the module kubernetes/ beside this file; helm is another, and so are
Kueue and JobSet's controller, which tests start themselves. They are built once for each content of these modules, into ~/.cache/larder (or
$XDG_CACHE_HOME/larder). A first build takes 28 minutes of a core and 6 GB of Go's caches. `--install` does only that, and
builds larder-kubernetes, into build/kubernetes. Without Go it says so and succeeds: the tests that need it say what they
left out.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import program
from installed import GO_MISSING, cached, find_go, go_command

PRODUCT = program.ROOT / "scheduler" / "engines" / "kubernetes"
MODULE = pathlib.Path(__file__).resolve().parent / "kubernetes"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")
LINEARIZABLE = program.ROOT / "tests" / "campaign" / "linearizable"  # fetched here, too, for the campaign
# A module of its own: Helm needs later versions of some packages than Kubernetes does.
HELM = MODULE / "helm"
CONTROLLERS = MODULE / "controllers"
# etcd and kube-apiserver do not always end at SIGTERM while clients are connected.
KILL_AFTER_S = 10
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters:
- name: test
  cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: {directory}/ca.crt}}
users:
- name: admin
  user: {{client-certificate: {directory}/admin.crt, client-key: {directory}/admin.key}}
contexts:
- name: test
  context: {{cluster: test, user: admin}}
current-context: test
"""


def install() -> pathlib.Path:
    """The directory of the control plane's programs. Builds them if they are missing."""
    return cached("kubernetes", contents(MODULE, HELM), build)


def install_controllers() -> pathlib.Path:
    """The directory of `kueue` and `jobset`, and of their kinds, `kueue-crds` and `jobset-crds`. Builds what is missing."""
    modules = (CONTROLLERS, CONTROLLERS / "kueue", CONTROLLERS / "jobset")
    return cached("controllers", contents(*modules), build_controllers)


def contents(*modules: pathlib.Path) -> Iterator[bytes]:
    for path in sorted(path for module in modules for path in module.glob("*.*")):
        yield path.name.encode() + b"\0" + path.read_bytes()


def build(folder: pathlib.Path) -> None:
    version = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (MODULE / "go.mod").read_text())
    assert version, "go.mod names the version of Kubernetes"
    # Kubernetes' own build sets these; clients take a server without a version for one that is too old.
    names = {"gitVersion": version[1], "gitMajor": version[2], "gitMinor": version[3], "gitTreeState": "clean"}
    flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in names.items())
    for module, name in ((MODULE, "kubernetes"), (HELM, "helm")):
        go_command(module, "build", "-ldflags", f"-s -w {flags}", "-o", folder / name, ".")
    for name in COMPONENTS:
        (folder / name).symlink_to("kubernetes")


def build_controllers(folder: pathlib.Path) -> None:
    for name in ("kueue", "jobset"):
        go_command(CONTROLLERS, "build", "-ldflags", "-s -w", "-o", folder / name, f"./{name}")
        module = pathlib.Path(go_command(CONTROLLERS, "list", "-m", "-f", "{{.Dir}}", f"sigs.k8s.io/{name}"))
        kinds = folder / f"{name}-crds"
        kinds.mkdir()
        for path in (module / "config" / "components" / "crd" / "bases").glob("*.yaml"):
            (kinds / path.name).write_bytes(path.read_bytes())  # Go's cache of modules is read-only


def build_program(module: pathlib.Path, output: pathlib.Path) -> None:
    """Builds a program of this repository. A build that changes nothing takes a second."""
    go_command(module, "build", "-o", output, ".")


def build_larder_kubernetes() -> pathlib.Path:
    """The program under test."""
    output = program.ROOT / "build" / "kubernetes" / "larder-kubernetes"
    build_program(PRODUCT, output)
    return output


class ControlPlane:
    def __init__(self, directory: pathlib.Path, programs: pathlib.Path) -> None:
        self._directory = directory
        self._programs = programs
        self._children: dict[str, program.Child] = {}
        self.kubeconfig = directory / "kubeconfig"
        self._certificates()
        self._held = [program.hold_port() for _ in range(6)]
        self._etcd, peer, self._port, manager, scheduler, kwok = (one.getsockname()[1] for one in self._held)
        etcd = self._etcd
        self.kubeconfig.write_text(KUBECONFIG.format(port=self._port, directory=directory))
        as_admin = [
            f"{name}={self.kubeconfig}"
            for name in ("--kubeconfig", "--authentication-kubeconfig", "--authorization-kubeconfig")
        ]
        server = f"https://127.0.0.1:{self._port}"
        # Their defaults of 20 to 50 requests a second are too slow for tests.
        fast = ("--kube-api-qps=1000", "--kube-api-burst=1000")
        self._options: dict[str, list[object]] = {
            "etcd": [
                f"--data-dir={directory}/etcd", f"--listen-client-urls=http://127.0.0.1:{etcd}",
                f"--advertise-client-urls=http://127.0.0.1:{etcd}", f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}", "--unsafe-no-fsync",
            ],
            "kube-apiserver": [
                f"--etcd-servers=http://127.0.0.1:{etcd}", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
                f"--secure-port={self._port}", "--endpoint-reconciler-type=none", "--authorization-mode=RBAC",
                f"--tls-cert-file={directory}/server.crt", f"--tls-private-key-file={directory}/server.key",
                f"--client-ca-file={directory}/ca.crt", f"--service-account-issuer={server}",
                f"--service-account-key-file={directory}/accounts.pub",
                f"--service-account-signing-key-file={directory}/accounts.key",
                "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged",
            ],
            "kube-controller-manager": [
                *as_admin, *fast, "--concurrent-job-syncs=20", "--bind-address=127.0.0.1",
                f"--secure-port={manager}", "--leader-elect=false",
                f"--service-account-private-key-file={directory}/accounts.key", f"--root-ca-file={directory}/ca.crt",
            ],
            "kube-scheduler": [
                *as_admin, *fast, "--bind-address=127.0.0.1", f"--secure-port={scheduler}", "--leader-elect=false",
            ],
            "kwok": [
                f"--kubeconfig={self.kubeconfig}", f"--config={MODULE / 'stages.yaml'}",
                "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40",
                f"--server-address=127.0.0.1:{kwok}",
            ],
        }  # fmt: skip
        self._health = {"kube-controller-manager": manager, "kube-scheduler": scheduler}

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], cwd=self._directory, check=True, capture_output=True)

    def _certificates(self) -> None:
        """One authority, the API server's certificate, an administrator's, and the key of service accounts' tokens."""
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        self._openssl(
            "req", "-x509", *new_key, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt",
            "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
        names = "subjectAltName=IP:127.0.0.1,IP:10.0.0.1,DNS:localhost"
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key")
        self._openssl(
            "req", "-x509", *new_key, *signed, "-subj", "/CN=kube-apiserver", "-keyout", "server.key",
            "-out", "server.crt", "-addext", names, "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        self._openssl(
            "req", "-x509", *new_key, *signed, "-subj", "/O=system:masters/CN=admin", "-keyout", "admin.key",
            "-out", "admin.crt", "-addext", "extendedKeyUsage=clientAuth",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "accounts.key")
        self._openssl("ec", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")

    def start_one(self, name: str) -> None:
        log = self._directory / f"{name}.log"
        self._children[name] = program.Child([self._programs / name, *self._options[name]], log)
        if name == "kube-apiserver":
            self._wait_until_healthy(name, self._port, "/readyz")
        elif name in self._health:
            self._wait_until_healthy(name, self._health[name], "/healthz")

    def _wait_until_healthy(self, name: str, port: int, path: str) -> None:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the scheduler signs its own certificate
        if port == self._port:
            context.load_cert_chain(self._directory / "admin.crt", self._directory / "admin.key")
        while True:
            self._children[name].check()
            try:
                with urllib.request.urlopen(f"https://127.0.0.1:{port}{path}", context=context, timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)

    def stop_some(self, names: list[str]) -> None:
        children = [self._children.pop(name) for name in names]
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + KILL_AFTER_S
        for child in children:
            try:
                child.process.wait(max(0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def compact(self) -> None:
        """A watch that goes on from an earlier revision then gets 410 Gone, unless the API server remembers."""

        def ask(path: str, body: dict[str, object]) -> dict:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self._etcd}/v3/kv/{path}", json.dumps(body).encode(), method="POST"
            )
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)

        revision = ask("range", {"key": "AA==", "count_only": True})["header"]["revision"]
        ask("compaction", {"revision": revision, "physical": True})

    def start(self) -> None:
        for name in self._options:
            self.start_one(name)

    def stop(self) -> None:
        for name in reversed(self._options):
            if name in self._children:
                self.stop_some([name])
        for held in self._held:
            held.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, nargs="?")
    parser.add_argument("--install", action="store_true", help="build the programs if need be, and end")
    arguments = parser.parse_args()
    if arguments.install and find_go() is None:
        print(f"tests of Kubernetes are left out: {GO_MISSING}")
        return
    programs = install()
    if arguments.install:
        install_controllers()
        build_larder_kubernetes()
        build_program(LINEARIZABLE, program.ROOT / "build" / "linearizable")
        return
    if arguments.directory is None:
        parser.error("DIRECTORY is missing")
    program.end_on_sigterm()
    plane = ControlPlane(arguments.directory.resolve(), programs)

    def answer(line: bytes) -> str:
        command = json.loads(line)
        if command["do"] == "stop":
            plane.stop_some([command["name"]])
        elif command["do"] == "start":
            plane.start_one(command["name"])
        elif command["do"] == "compact":
            plane.compact()
        else:
            sys.exit(f"unknown command: {line!r}")
        return "{}"

    try:
        plane.start()
        program.announce(kubeconfig=plane.kubeconfig, kubectl=programs / "kubectl", helm=programs / "helm")
        program.until_input_closes(answer)
    finally:
        plane.stop()


if __name__ == "__main__":
    main()
