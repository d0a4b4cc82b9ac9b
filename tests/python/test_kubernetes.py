"""Kubernetes places pods and Larder follows: a real control plane with fake nodes, a real allocator and real daemons."""

from __future__ import annotations

import base64
import json
import pathlib
import re
import subprocess
import textwrap
from collections.abc import Iterator

import kubernetes
import pytest
import yaml
from conftest import write_tree
from kubernetes_cluster import EMPTY_NODE, GPUS, NODES, Cluster

pytestmark = [
    pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING),
    pytest.mark.control_plane,
]


@pytest.fixture(scope="module")
def cluster(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("k")
    started = Cluster(larder_bin, kubernetes.build_larder_kubernetes(), repository, directory)
    try:
        write_tree(directory / "texts", 10, seed=4)
        started.add_images()
        yield started
    finally:
        started.stop()


@pytest.fixture(autouse=True)
def no_pods_left(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.delete_jobs()


def train_job(dataset: str, pods: int, gpus: int, **labels: str) -> dict[str, object]:
    """A Job of one pod for each of so many nodes."""
    container = {"name": "train", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    nodes = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(NODES)}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": nodes}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"labels": {"larder.io/dataset": dataset} | labels},
                "spec": {"restartPolicy": "Never", "affinity": affinity, "containers": [container]},
            },
        },
    }


def environment_of(pod: dict) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0].get("env", [])}


def test_dataset_becomes_known_on_daemons(cluster: Cluster) -> None:
    for daemon in cluster.daemons.values():
        assert "images" in daemon.command("dataset", "ls")
    cluster.kubectl("wait", "--for=condition=Ready", "dataset/images", "--timeout=300s")
    cluster.until(lambda: cluster.get("dataset", "images")["status"]["nodes"] == len(NODES))  # one node makes it ready
    assert cluster.get("dataset", "images")["status"]["sizeBytes"] == cluster.rows("datasets")["images"]["size_bytes"]
    header, row = cluster.kubectl("get", "datasets").splitlines()
    assert header.split() == ["NAME", "URL", "SIZE", "CACHED", "NODES", "READY", "AGE"]
    assert row.split()[:2] == ["images", f"file://{cluster.directory}/images"]
    assert row.split()[-3:-1] == [str(len(NODES)), "True"]


def test_labelled_pod_gets_environment_and_socket(cluster: Cluster) -> None:
    cluster.apply(cluster.pod("alone", "images", "n1"), train_job("images", 1, 1))
    pod = cluster.get("pod", "alone")
    socket = f"{cluster.sockets}/larderd.sock"
    wanted = {"LARDER_SOCKET": socket, "LARDER_DATASET": "images", "LARDER_JOB": "kubernetes-default.alone"}
    assert environment_of(pod) == wanted
    mounts = [mount for mount in pod["spec"]["containers"][0]["volumeMounts"] if mount["name"] == "larder-socket"]
    assert mounts == [{"name": "larder-socket", "mountPath": str(cluster.sockets), "readOnly": True}]
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["larder-socket"]["hostPath"]["path"] == str(cluster.sockets)
    cluster.until(lambda: cluster.jobs().keys() == {"kubernetes-default.alone", "kubernetes-default.train"})
    of_job = json.loads(cluster.kubectl("get", "pods", "--selector=job-name=train", "--output=json"))["items"][0]
    assert environment_of(of_job)["LARDER_JOB"] == "kubernetes-default.train"


def test_pods_of_a_jobset_are_one_job_unless_they_name_another(cluster: Cluster) -> None:
    for name, labels in (("a-0", {}), ("b-0", {}), ("eval-0", {"larder.io/job": "eval"})):
        pod = cluster.pod(name, "images", "n1")
        pod["metadata"]["labels"].update(labels | {"jobset.sigs.k8s.io/jobset-name": "train"})  # type: ignore[index]
        cluster.apply(pod)
    cluster.until(
        lambda: cluster.jobs()
        == {
            "kubernetes-default.train": ("images", ["n1"], 2),
            "kubernetes-default.eval": ("images", ["n1"], 1),
        }
    )
    jobs = {name: environment_of(cluster.get("pod", name))["LARDER_JOB"] for name in ("a-0", "b-0", "eval-0")}
    assert jobs == {
        "a-0": "kubernetes-default.train", "b-0": "kubernetes-default.train", "eval-0": "kubernetes-default.eval",
    }  # fmt: skip


def test_own_environment_of_a_pod_stays(cluster: Cluster) -> None:
    pod = cluster.pod("own", "images", "n1")
    container = pod["spec"]["containers"][0]  # type: ignore[index]
    container["env"] = [{"name": "LARDER_SOCKET", "value": "/elsewhere"}]
    pod["spec"]["initContainers"] = [{"name": "prepare", "image": "train:1"}]  # type: ignore[index]
    cluster.apply(pod)
    made = cluster.get("pod", "own")
    assert environment_of(made)["LARDER_SOCKET"] == "/elsewhere"
    prepared = {one["name"] for one in made["spec"]["initContainers"][0]["env"]}
    assert prepared == {"LARDER_SOCKET", "LARDER_DATASET", "LARDER_JOB"}


def test_pods_of_one_generated_name_are_one_job(cluster: Cluster) -> None:
    for node in NODES:
        pod = cluster.pod("", "images", node)
        pod["metadata"] = {"generateName": "run-", "labels": {"larder.io/dataset": "images"}}
        cluster.kubectl("create", "-f", "-", text=json.dumps(pod))
    cluster.until(lambda: cluster.jobs() == {"kubernetes-default.run-": ("images", list(NODES), 2)})
    for made in json.loads(cluster.kubectl("get", "pods", "--output=json"))["items"]:
        assert environment_of(made)["LARDER_JOB"] == "kubernetes-default.run-"


def test_pod_without_label_is_left_alone(cluster: Cluster) -> None:
    cluster.apply(cluster.pod("other", "images", "n1", labels={}))
    pod = cluster.get("pod", "other")
    assert environment_of(pod) == {}
    assert "larder-socket" not in [volume["name"] for volume in pod["spec"]["volumes"]]


def test_job_is_known_with_nodes_and_gpus_until_it_ends(cluster: Cluster) -> None:
    cluster.apply(train_job("images", 2, GPUS))
    cluster.until(lambda: cluster.jobs() == {"kubernetes-default.train": ("images", list(NODES), 2 * GPUS)})
    cluster.delete("job", "train")
    cluster.until(lambda: "kubernetes-default.train" not in cluster.rows("jobs"))


def test_label_joins_pods_of_several_owners(cluster: Cluster) -> None:
    labels = {"larder.io/dataset": "images", "larder.io/job": "both"}
    cluster.apply(
        cluster.pod("a", "images", "n1", 2, labels=labels), cluster.pod("b", "images", "n2", 3, labels=labels)
    )
    cluster.until(lambda: cluster.jobs() == {"kubernetes-default.both": ("images", list(NODES), 5)})
    cluster.delete("pod", "b")
    cluster.until(lambda: cluster.jobs() == {"kubernetes-default.both": ("images", ["n1"], 2)})


def test_pod_that_ends_by_itself_ends_its_job(cluster: Cluster) -> None:
    cluster.apply(cluster.pod("short", "images", "n1"))
    cluster.until(lambda: "kubernetes-default.short" in cluster.jobs())
    cluster.end_pod("short")
    cluster.until(lambda: "kubernetes-default.short" not in cluster.rows("jobs"))
    assert cluster.get("pod", "short")["status"]["phase"] == "Succeeded"


def test_pod_of_unknown_dataset_does_not_stop_others(cluster: Cluster) -> None:
    cluster.apply(cluster.pod("a-wrong", "imagenot", "n1"), cluster.pod("right", "images", "n1"))
    cluster.until(lambda: cluster.jobs().keys() == {"kubernetes-default.right"})


def test_pod_on_node_without_daemon_is_no_part_of_a_plan(cluster: Cluster) -> None:
    cluster.apply(cluster.pod("far", "images", EMPTY_NODE), cluster.pod("near", "images", "n1"))
    cluster.until(lambda: {name: row["running"] for name, row in cluster.rows("jobs").items()} == {
        "kubernetes-default.far": False, "kubernetes-default.near": True,
    })  # fmt: skip


def test_killed_controller_catches_up(cluster: Cluster) -> None:
    labels = {"larder.io/dataset": "images", "larder.io/job": "both"}
    cluster.apply(
        cluster.pod("gone", "images", "n1"),
        cluster.pod("a", "images", "n1", 2, labels=labels),
        cluster.pod("b", "images", "n2", 2, labels=labels),
    )
    both = ("images", list(NODES), 4)
    cluster.until(lambda: cluster.jobs().get("kubernetes-default.both") == both and len(cluster.jobs()) == 2)
    cluster.controllers["c1"].kill()
    cluster.delete("pod", "gone")
    cluster.delete("pod", "b")
    cluster.apply(cluster.pod("new", "images", "n2"))
    assert cluster.jobs()["kubernetes-default.both"] == both
    cluster.controllers["c1"].start()
    wanted = {"kubernetes-default.both": ("images", ["n1"], 2), "kubernetes-default.new": ("images", ["n2"], 1)}
    cluster.until(lambda: cluster.jobs() == wanted)


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_restarted_allocator_learns_jobs_again(cluster: Cluster, state: str) -> None:
    cluster.apply(cluster.pod("before", "images", "n1", 2), cluster.pod("gone", "images", "n2"))
    cluster.until(lambda: len(cluster.jobs()) == 2)
    assert cluster.allocator.end() == 0
    cluster.delete("pod", "gone")
    cluster.apply(cluster.pod("meanwhile", "images", "n2", 3))
    if state == "lost":
        (cluster.directory / "state").rename(cluster.directory / "lost")
    cluster.start_allocator()
    wanted = {"kubernetes-default.before": ("images", ["n1"], 2), "kubernetes-default.meanwhile": ("images", ["n2"], 3)}
    cluster.until(lambda: cluster.jobs() == wanted)
    assert "kubernetes-default.gone" not in cluster.rows("jobs")


def test_second_controller_takes_over(cluster: Cluster) -> None:
    def leader() -> str:
        found: str = cluster.get("lease", "larder-kubernetes", "larder")["spec"]["holderIdentity"]
        return found

    cluster.until(leader)
    first = leader()
    second = cluster.start_controller("c2")
    cluster.apply(cluster.pod("one", "images", "n1"))
    cluster.until(lambda: "kubernetes-default.one" in cluster.jobs())
    assert leader() == first
    assert "Starting workers" not in second.log.read_text()
    cluster.controllers.pop("c1").kill()
    cluster.delete("pod", "one")
    cluster.until(lambda: "kubernetes-default.one" not in cluster.rows("jobs"))
    assert leader() != first
    cluster.controllers["c1"] = cluster.controllers.pop("c2")


def test_restarted_api_server_loses_nothing(cluster: Cluster) -> None:
    cluster.apply(cluster.pod("before", "images", "n1"))
    cluster.until(lambda: "kubernetes-default.before" in cluster.jobs())
    cluster.server.ask({"do": "stop", "name": "kube-apiserver"})
    assert "kubernetes-default.before" in cluster.jobs()
    cluster.server.ask({"do": "start", "name": "kube-apiserver"})
    cluster.until(lambda: not cluster.try_kubectl("get", "pods").returncode)
    cluster.delete("pod", "before")
    cluster.apply(cluster.pod("after", "images", "n2"))

    def followed() -> bool:
        cluster.revive()
        return cluster.jobs().keys() == {"kubernetes-default.after"}

    cluster.until(followed)


def test_dataset_is_changed_and_removed(cluster: Cluster) -> None:
    cluster.add_dataset("texts", f"file://{cluster.directory}/texts", format="raw")
    cluster.kubectl("wait", "--for=condition=Ready", "dataset/texts", "--timeout=300s")
    small = cluster.rows("datasets")["texts"]["size_bytes"]
    cluster.add_dataset("texts", f"file://{cluster.directory}/images", format="raw")
    images = cluster.rows("datasets")["images"]["size_bytes"]
    assert images != small
    cluster.until(lambda: cluster.get("dataset", "texts").get("status", {}).get("sizeBytes") == images)
    daemons = cluster.daemons.values()
    url = f"{cluster.directory}/images\n"
    cluster.until(lambda: all(url in daemon.try_command("dataset", "info", "texts").stdout for daemon in daemons))
    # A node that is away when the Dataset is deleted removes it later.
    cluster.nodes["n2"].kill()
    cluster.delete("dataset", "texts")
    cluster.until(lambda: "texts" not in cluster.daemons["n1"].command("dataset", "ls"))
    assert "texts" in cluster.daemons["n2"].command("dataset", "ls")
    cluster.nodes["n2"].start()
    cluster.until(lambda: "texts" not in cluster.daemons["n2"].command("dataset", "ls"))


def test_dataset_added_by_hand_stays(cluster: Cluster) -> None:
    daemon = cluster.daemons["n1"]
    daemon.command("dataset", "add", "mine", cluster.directory / "texts", "--format", "raw")
    cluster.add_dataset("mine", f"file://{cluster.directory}/images", format="raw")
    cluster.until(lambda: "NameTaken" in cluster.kubectl("events", "--for=dataset/mine"))
    cluster.delete("dataset", "mine")
    assert "mine" in daemon.command("dataset", "ls")
    daemon.command("dataset", "rm", "mine")


def test_quota_is_pinned_and_released(cluster: Cluster) -> None:
    url = f"file://{cluster.directory}/images"
    cluster.add_dataset("images", url, format="raw", quota="1Mi")
    cluster.until(lambda: cluster.rows("datasets")["images"].get("pinned_bytes") == 1 << 20)
    cluster.kubectl("wait", "--for=condition=QuotaPinned", "dataset/images", "--timeout=300s")
    cluster.add_dataset("images", url, format="raw", quota="1Pi")
    cluster.kubectl("wait", "--for=condition=QuotaPinned=false", "dataset/images", "--timeout=300s")
    cluster.add_dataset("images", url, format="raw", quota=None)
    cluster.until(lambda: "pinned_bytes" not in cluster.rows("datasets")["images"])


def test_dataset_is_warmed(cluster: Cluster) -> None:
    cluster.add_dataset("warm", f"file://{cluster.directory}/texts", format="raw", warm=True)
    cluster.until(lambda: cluster.get("dataset", "warm").get("status", {}).get("cachedBytes", 0) > 0)
    cluster.delete("dataset", "warm")
    cluster.until(lambda: "warm" not in cluster.rows("datasets"))


def test_credentials_come_from_the_secret(cluster: Cluster) -> None:
    cluster.add_dataset(
        "secret", "s3://bucket/data", endpoint="http://127.0.0.1:9", secretRef={"name": "keys"}, format="raw"
    )
    cluster.until(lambda: "SecretNotUsable" in cluster.kubectl("events", "--for=dataset/secret"))
    data = {"aws_access_key_id": "id-of-test", "aws_secret_access_key": "key-of-test"}
    encoded = {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}
    keys = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "larder"}, "data": encoded}
    cluster.apply(keys)
    profile = "[kubernetes-secret]\naws_access_key_id = id-of-test\naws_secret_access_key = key-of-test\n"
    files = [cluster.directory / node / "s3-credentials" for node in NODES]
    cluster.until(lambda: all(path.exists() and path.read_text() == profile for path in files))
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    cluster.delete("dataset", "secret")
    cluster.until(lambda: all(path.read_text() == "" for path in files))


def test_remote_budget_is_applied_and_reset(cluster: Cluster) -> None:
    def remote() -> float:
        status = cluster.allocator.ask("GET", "/v1/status").json()
        assert isinstance(status, dict)
        return float(status["remote_bytes_per_second"])

    before = remote()
    budget = {"apiVersion": "larder.io/v1alpha1", "kind": "RemoteBudget", "metadata": {"name": "all"}}
    cluster.apply(budget | {"spec": {"bytesPerSecond": "300M"}})
    cluster.kubectl("wait", "--for=condition=Applied", "remotebudget/all", "--timeout=300s")
    assert remote() == 300e6
    cluster.apply(budget | {"metadata": {"name": "second"}, "spec": {"bytesPerSecond": "1G"}})
    cluster.kubectl("wait", "--for=condition=Applied=false", "remotebudget/second", "--timeout=300s")
    assert remote() == 300e6
    cluster.delete("remotebudget", "all")
    cluster.until(lambda: remote() == 1e9)
    cluster.delete("remotebudget", "second")
    cluster.until(lambda: remote() == before)


def test_chart_is_linted_and_its_pods_start(cluster: Cluster) -> None:
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", cluster.chart)
    for kind, name in (("daemonset", "larder-node"), ("deployment", "larder-controller")):
        cluster.kubectl("rollout", "status", f"{kind}/{name}", "--namespace=larder", "--timeout=300s")
    again = cluster.get("secret", "larder-allocator-tokens", "larder")["data"]
    cluster.helm("upgrade", "larder", cluster.chart, "--namespace=larder", "--reuse-values")
    assert cluster.get("secret", "larder-allocator-tokens", "larder")["data"] == again


def test_chart_tells_prometheus_where_to_scrape(cluster: Cluster) -> None:
    options = ("--set", "serviceMonitor.enabled=true", "--set", "serviceMonitor.labels.release=prometheus")
    rendered = cluster.helm("template", "larder", cluster.chart, *options)
    monitors = {one["kind"]: one for one in yaml.safe_load_all(rendered) if one and one["kind"].endswith("Monitor")}
    endpoints = []
    for kind, key in (("ServiceMonitor", "endpoints"), ("PodMonitor", "podMetricsEndpoints")):
        labels = monitors[kind]["metadata"]["labels"]
        assert (labels["release"], labels["app.kubernetes.io/instance"]) == ("prometheus", "larder")
        endpoints += monitors[kind]["spec"][key]
    assert [endpoint["port"] for endpoint in endpoints] == ["https", "metrics"]
    # Prometheus has a label "job" of its own, and would rename that of the metrics.
    assert all(endpoint["honorLabels"] for endpoint in endpoints)


def test_chart_has_the_dashboard(cluster: Cluster, repository: pathlib.Path) -> None:
    rendered = cluster.helm("template", "larder", cluster.chart, "--set", "dashboard.enabled=true")
    (board,) = (one for one in yaml.safe_load_all(rendered) if one and one["metadata"]["name"] == "larder-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    written = (repository / "tools" / "grafana-dashboard.json").read_text()
    assert json.loads(board["data"]["larder.json"]) == json.loads(written)
    cluster.kubectl("apply", "--dry-run=server", "--namespace=larder", "-f", "-", text=json.dumps(board))


def test_chart_runs_several_allocators(cluster: Cluster, larder_bin: pathlib.Path, repository: pathlib.Path) -> None:
    text = (repository / "docs" / "kubernetes.md").read_text()
    (values,) = re.findall(r"^    allocator:\n(?:      .*\n)+", text, re.M)
    (cluster.directory / "several.yaml").write_text(textwrap.dedent(values))
    rendered = cluster.helm(
        "template", "three", cluster.chart, "--namespace=larder", "--values", cluster.directory / "several.yaml"
    )
    cluster.kubectl("apply", "--dry-run=server", "--namespace=larder", "-f", "-", text=rendered)
    objects = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(rendered) if one}
    allocator = objects["StatefulSet", "three-allocator"]["spec"]
    assert (allocator["replicas"], allocator["serviceName"]) == (3, "three-allocators")
    assert objects["Service", "three-allocators"]["spec"]["clusterIP"] == "None"
    names = ",".join(f"https://three-allocator-{i}.three-allocators.larder.svc:7600" for i in range(3))
    (controller,) = objects["Deployment", "three-controller"]["spec"]["template"]["spec"]["containers"]
    assert f"--allocator={names}" in controller["args"]
    containers = objects["DaemonSet", "three-node"]["spec"]["template"]["spec"]["containers"]
    (daemon,) = (container for container in containers if container["name"] == "larderd")
    assert f"--allocator.endpoint={names}" in daemon["args"]
    container = allocator["template"]["spec"]["containers"][0]
    arguments = [argument.replace("$(POD_NAME)", "three-allocator-0") for argument in container["args"]]
    checked = subprocess.run([larder_bin / "larder-allocator", "--check", *arguments], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert "/etc/larder/etcd" in mounted and "--etcd.ca=/etc/larder/etcd/ca.crt" in arguments
    assert "/etc/larder/etcd-user" in mounted
    assert "--etcd.password-file=/etc/larder/etcd-user/password" in arguments and "--etcd.user=$(ETCD_USER)" in arguments
    (user,) = (variable for variable in container["env"] if variable["name"] == "ETCD_USER")
    assert user["valueFrom"]["secretKeyRef"] == {"name": "larder-etcd-user", "key": "username"}


def test_upgrade_to_another_state_is_refused_unless_it_is_meant(cluster: Cluster) -> None:
    def upgrade(endpoints: str, switch: str = "") -> str:
        """Returns why it is refused; empty if it is not."""
        ran = cluster.try_helm(
            "upgrade", "larder", cluster.chart, "--namespace=larder", "--reuse-values",
            "--set", f"allocator.etcd.endpoints={endpoints}", "--set", f"allocator.switchStateTo={switch}",
        )  # fmt: skip
        return "" if ran.returncode == 0 else ran.stderr

    def names() -> tuple[str, bool]:
        """The Service of the StatefulSet, and whether the allocators have names of their own."""
        own = cluster.try_kubectl("get", "service", "larder-allocators", "--namespace=larder").returncode == 0
        return cluster.get("statefulset", "larder-allocator", "larder")["spec"]["serviceName"], own

    assert upgrade("") == ""
    for before, after, other, endpoints in (
        (("larder-allocator", False), ("larder-allocators", True), "etcd", "http://etcd:2379"),
        (("larder-allocators", True), ("larder-allocator", False), "volume", ""),
    ):
        kept = "http://etcd:2379" if other == "volume" else ""
        assert f"allocator.switchStateTo={other}" in upgrade(endpoints)
        assert f"allocator.switchStateTo={other}" in upgrade(endpoints, "volume" if other == "etcd" else "etcd")
        assert "kubectl delete statefulset larder-allocator --namespace larder" in upgrade(endpoints, other)
        assert names() == before
        assert upgrade(kept) == ""
        cluster.delete("statefulset", "larder-allocator", "--namespace=larder")
        assert f"allocator.switchStateTo={other}" in upgrade(endpoints)
        assert upgrade(endpoints, other) == ""
        assert names() == after
    assert upgrade("") == ""


def test_page_moves_the_state_to_where_the_chart_reads_it(cluster: Cluster, repository: pathlib.Path) -> None:
    text = (repository / "docs" / "kubernetes.md").read_text()
    (values,) = re.findall(r"^    allocator:\n(?:      .*\n)+", text, re.M)
    (pod,) = (
        yaml.safe_load(textwrap.dedent(document))
        for document in re.findall(r"<<'END'\n(.*?)^    END$", text, re.M | re.S)
        if "move-state" in document
    )
    (cluster.directory / "moved.yaml").write_text(textwrap.dedent(values))
    rendered = cluster.helm(
        "template", "larder", cluster.chart, "--namespace=larder", "--values", cluster.directory / "moved.yaml"
    )
    (allocator,) = (one for one in yaml.safe_load_all(rendered) if one and one["kind"] == "StatefulSet")
    template = allocator["spec"]["template"]["spec"]
    (container,) = pod["spec"]["containers"]
    told = set(container["command"]) - {"larder-allocator", "--move-state-to-etcd"}
    assert "--state=/var/lib/larder-allocator" in told
    # The name is of no use: this pod never leads. It serves nobody.
    own = ("--etcd.name=", "--listen=", "--tls.", "--access.")
    assert told == {one for one in template["containers"][0]["args"] if not one.startswith(own)}
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {
        "/var/lib/larder-allocator", "/etc/larder/etcd", "/etc/larder/etcd-user",
    }  # fmt: skip
    for volume in pod["spec"]["volumes"]:
        if volume["name"] == "state":
            assert volume["persistentVolumeClaim"]["claimName"] == "state-larder-allocator-0"
        else:
            assert volume in template["volumes"]
    for name, value in pod["spec"]["securityContext"].items():
        assert template["securityContext"][name] == value


def test_commands_in_the_pods_find_their_sockets(cluster: Cluster) -> None:
    for kind, program, options in (
        ("statefulset/larder-allocator", "larder-allocator", {"LARDER_ALLOCATOR": "--state={directory}"}),
        ("daemonset/larder-node", "larderd", {"LARDER_ADMIN_SOCKET": "--admin-socket={path}", "LARDER_SOCKET": "--socket={path}"}),
    ):
        template = cluster.get(*kind.split("/"), "larder")["spec"]["template"]
        chosen = template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
        (container,) = (one for one in template["spec"]["containers"] if one["name"] == chosen)
        assert container["command"] == [program]
        values = {variable["name"]: variable.get("value") for variable in container["env"]}
        for name, option in options.items():
            socket = pathlib.Path(values[name])
            assert option.format(directory=socket.parent, path=socket) in container["args"]


def test_service_accounts_have_least_rights(cluster: Cluster) -> None:
    def may(component: str, *what: str) -> bool:
        account = f"--as=system:serviceaccount:larder:larder-{component}"
        return cluster.try_kubectl("auth", "can-i", *what, account).returncode == 0

    assert may("node", "get", "secrets", "--namespace=larder")
    assert not may("node", "get", "secrets", "--namespace=default")
    assert not may("node", "list", "secrets", "--namespace=larder")
    assert not may("node", "list", "pods", "--all-namespaces")
    assert may("controller", "list", "pods", "--all-namespaces")
    assert not may("controller", "get", "secrets", "--namespace=larder")
    assert not may("controller", "delete", "pods", "--all-namespaces")


def test_page_is_accepted(cluster: Cluster, repository: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """docs/kubernetes.md: the API server takes its objects, and the chart its values. Those of Kueue and JobSet
    have tests of their own."""
    page = (repository / "docs" / "kubernetes.md").read_text()
    text = re.sub(r"^(## Kueue|### JobSets)\n.*?^(?=##)", "", page, flags=re.M | re.S)
    documents = re.findall(r"^    \$ (kubectl apply -f -|cat >values.yaml) <<'END'\n(.*?)^    END$", text, re.M | re.S)
    assert [command.split()[0] for command, _ in documents] == ["cat"] + ["kubectl"] * 6
    for command, document in documents:
        if command.startswith("kubectl"):
            cluster.kubectl("apply", "--dry-run=server", "-f", "-", text=textwrap.dedent(document))
            continue
        values = tmp_path / "values.yaml"
        values.write_text(textwrap.dedent(document))
        rendered = cluster.helm("template", "larder", cluster.chart, "--values", values)
        # The runtime's default refuses io_uring.
        assert rendered.count('seccompProfile: {"type":"Unconfined"}') == 1
        assert "--remote-bandwidth=10 Gbit" in rendered and "image: registry.example/larder-kubernetes:0.1.0" in rendered
    (certificate,) = re.findall(r"^    \$ (openssl req .*?-out tls.crt)$", text, re.M | re.S)
    subprocess.run(["bash", "-ec", certificate], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "tls.crt").exists()
