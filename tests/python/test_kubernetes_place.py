"""Larder decides where gated pods run: a real control plane with fake nodes, a real allocator, and real controllers."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import kubernetes
import pytest
from kubernetes_place import PlaceCluster

pytestmark = [
    pytest.mark.skipif(kubernetes.find_go() is None, reason=kubernetes.GO_MISSING),
    pytest.mark.control_plane,
]


@pytest.fixture(scope="module")
def cluster(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlaceCluster]:
    started = PlaceCluster(
        larder_bin, kubernetes.build_larder_kubernetes(), repository, tmp_path_factory.mktemp("k")
    )
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(autouse=True)
def nothing_left(cluster: PlaceCluster) -> Iterator[None]:
    yield
    cluster.clean()


def test_gang_runs_where_the_allocator_decides_and_ends(cluster: PlaceCluster) -> None:
    cluster.apply(cluster.gated_job("train", pods=2, runs_for="3s"))
    cluster.until(lambda: cluster.state("train") == "running")
    assert cluster.places("train") == cluster.decided("train")
    cluster.until(lambda: cluster.state("train") == "succeeded")
    assert cluster.condition("train", "Complete")
    assert cluster.queue_job("train")["attempt"] == 1


def test_gang_waits_behind_its_gates_until_it_has_all_its_gpus(cluster: PlaceCluster) -> None:
    cluster.apply(cluster.gated_job("first", pods=2))
    cluster.until(lambda: cluster.state("first") == "running")
    cluster.apply(cluster.gated_job("second", pods=2))
    cluster.until(lambda: cluster.state("second") == "waiting" and cluster.gated("second") == 2)
    assert cluster.places("second") == []
    cluster.delete("job", "first")
    cluster.until(lambda: cluster.state("second") == "running")
    assert cluster.places("second") == cluster.decided("second")
    cluster.until(lambda: cluster.state("first") == "cancelled")
