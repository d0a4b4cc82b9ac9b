"""Larder decides within the limits of Slurm's own accounts: a real slurmdbd, with a real database, keeps them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest
from slurm_place import PlaceSite, site, until_file

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a Slurm for several users")
TENANTS = ("--scheduler.tenant.red.weight", "1", "--scheduler.tenant.blue.weight", "1")
ACCOUNTS = (
    "add account red",
    "add account blue",
    "add user nobody account=red",
    "add user daemon account=blue",
    "modify account red set GrpTRES=gres/gpu=2",
    "add qos short",
    "modify qos short set MaxTRESPerUser=gres/gpu=1",
    "modify user daemon set qos+=short",
)


@pytest.fixture(scope="module")
def started(open_directory: pathlib.Path, larder_bin: pathlib.Path, repository: pathlib.Path) -> Iterator[PlaceSite]:
    site = PlaceSite(larder_bin, repository, open_directory, *TENANTS, nodes=2, accounting=ACCOUNTS)
    yield site
    site.stop()


def test_account_that_is_not_the_users_is_refused(site: PlaceSite) -> None:
    refused = site.sbatch("true", "--account=blue", user="nobody")
    assert refused.returncode != 0
    assert "Invalid account" in refused.stderr


def test_limit_of_an_account_leaves_the_gpus_to_others(site: PlaceSite) -> None:
    """Red may use 2 GPUs of Slurm's 4. Larder's own quotas do not say so."""
    (site.jobs / "done").unlink(missing_ok=True)
    first = site.submit(until_file("done"), gpus=2)
    site.waits(first, "RUNNING")
    second = site.submit("true", gpus=2)
    site.until(lambda: "AssocGrpGRES" in site.log_of(second), "Slurm has refused the job")
    assert site.larder(second)["tenant"] == "red"
    other = site.submit("true", user="daemon", gpus=2)
    site.waits(other, "COMPLETED")
    assert site.state(first) == "RUNNING"
    (site.jobs / "done").touch()
    site.waits(second, "COMPLETED")
    assert site.waits_in_larder(second, "succeeded")["tenant"] == "red"


def test_limit_of_a_qos_leaves_the_gpus_to_others(site: PlaceSite) -> None:
    (site.jobs / "done").unlink(missing_ok=True)
    first = site.submit(until_file("done"), "--qos=short", user="daemon")
    site.waits(first, "RUNNING")
    second = site.submit("true", "--qos=short", user="daemon")
    site.until(lambda: "QOSMaxGRESPerUser" in site.log_of(second), "Slurm has refused the job")
    other = site.submit("true", gpus=2)
    site.waits(other, "COMPLETED")
    (site.jobs / "done").touch()
    site.waits(second, "COMPLETED")
    assert site.larder(second)["tenant"] == "blue"


def test_jobs_that_a_limit_refuses_do_not_keep_others_waiting(site: PlaceSite) -> None:
    """A user has submitted many jobs of which one may run. Slurm is not asked for each before others get their turn."""
    (site.jobs / "done").unlink(missing_ok=True)
    first = site.submit(until_file("done"), "--qos=short", user="daemon")
    site.waits(first, "RUNNING")
    array = site.submit("true", "--qos=short", "--array=1-20", user="daemon")
    tasks = [f"{array}_{number}" for number in range(1, 21)]
    other = site.submit("true")
    site.waits(other, "COMPLETED")
    refused = [task for task in tasks if "QOSMaxGRESPerUser" in site.log_of(task)]
    assert 0 < len(refused) < 10, refused  # one for each free GPU, and once more
    assert site.state(first) == "RUNNING"
    site.run("scancel", array, user="daemon")
    (site.jobs / "done").touch()
    site.waits(first, "COMPLETED")
