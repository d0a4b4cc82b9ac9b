"""Partitions of Slurm with nodes of their own, in which Larder decides: each is a hierarchy of Larder's cells."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from slurm_place import PlaceSite, site

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a Slurm for several users")
HIERARCHY = """
[[hierarchy]]
name = "{name}"
gpu_type = "gpu"
levels = [{{ name = "node", of = 2 }}]
node = "node"
nodes = [{nodes}]
"""
CELLS = """
[[virtual_cluster]]
name = "default"
cells = [{ hierarchy = "old", level = "node", count = 1 }, { hierarchy = "new", level = "node", count = 2 }]
"""


@pytest.fixture(scope="module")
def started(open_directory: pathlib.Path, larder_bin: pathlib.Path, repository: pathlib.Path) -> Iterator[PlaceSite]:
    cells = open_directory / "cells.toml"
    cells.write_text(
        HIERARCHY.format(name="old", nodes='"n1"') + HIERARCHY.format(name="new", nodes='"n2", "n3"') + CELLS
    )
    site = PlaceSite(
        larder_bin, repository, open_directory, "--scheduler.cells", str(cells), nodes=3, names_nodes=False,
        partitions="pold:n1,pnew:n2+n3,pmixed:n1+n2",
        config='[partition.pold]\nhierarchy = "old"\n[partition.pnew]\nhierarchy = "new"\n',
    )  # fmt: skip
    yield site
    site.stop()


def test_jobs_keep_to_the_nodes_of_their_partition(site: PlaceSite) -> None:
    for partition, nodes in (("pnew", {"n2", "n3"}), ("pold", {"n1"})):
        jobs = [site.submit("true", f"--partition={partition}", gpus=2) for _ in range(3)]
        for job in jobs:
            site.waits(job, "COMPLETED")
            assert site.field(job, "NodeList") in nodes
            assert site.waits_in_larder(job, "succeeded")["attempt"] == 1, site.log_of(job)


def test_gang_of_a_partition_has_its_nodes_whole(site: PlaceSite) -> None:
    job = site.submit("true", "--partition=pnew", "--nodes=2", gpus=2)
    site.waits(job, "COMPLETED")
    assert site.field(job, "NodeList") == "n[2-3]"
    too_large = site.submit("true", "--partition=pold", "--nodes=2", gpus=2)
    site.until(lambda: site.field(too_large, "AdminComment").count(";") == 1)
    assert site.larder(too_large) == {}


def test_job_may_name_the_hierarchy_of_its_partition_only(site: PlaceSite) -> None:
    right = site.submit("true", "--partition=pold", line="hierarchy=old", gpus=2)
    site.waits(right, "COMPLETED")
    wrong = site.submit("true", "--partition=pold", line="hierarchy=new", gpus=2)
    site.until(lambda: "the_partition_pold_is_the_hierarchy_old" in site.field(wrong, "AdminComment"))


def test_partition_with_some_nodes_needs_a_hierarchy(site: PlaceSite) -> None:
    job = site.submit("true", "--partition=pmixed", gpus=2)
    site.until(lambda: "the_partition_pmixed_has_only_some_of_Larder`s_nodes" in site.field(job, "AdminComment"))
    assert site.larder(job) == {}


def test_hierarchy_of_another_partition_is_refused(site: PlaceSite, tmp_path: pathlib.Path) -> None:
    config = tmp_path / "slurm.toml"
    config.write_text(site.config.read_text() + '[partition.q]\nhierarchy = "old"\n')
    ran = subprocess.run(
        [site.programs / "larder-slurm", "--config", config, "place"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2
    assert "[partition.q]: q is not among the partitions in which Larder decides" in ran.stderr
