"""Packages of tools/package in a clean Debian 12: docs/install.md as written, upgrades, and what is left in the end. In
a booted system, and in images of containers."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator

import clean_root
import pytest
from clean_root import CleanRoot, Image, Place

pytestmark = [
    pytest.mark.skipif(bool(clean_root.missing()), reason=clean_root.missing()),
    pytest.mark.control_plane,  # a sanitizer's runtime is no part of a package
]

MIB = 1 << 20
USER = "ada"
APT = """
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
"""


@pytest.fixture(scope="module")
def packages(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pathlib.Path]:
    directory = tmp_path_factory.mktemp("packages")
    command = ["tools/package", "--build", larder_bin.parent, "--output", directory, "sdist", "wheel", "deb"]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr
    assert {pathlib.Path(line) for line in ran.stdout.splitlines()} == set(directory.iterdir())
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def boot(
    tar: pathlib.Path, packages: pathlib.Path, directory: pathlib.Path, kind: type[Place] = CleanRoot
) -> Iterator[Place]:
    """A place with the packages in the home directories of root and of a user, who has files to train on."""
    system = kind(tar, directory)
    try:
        (system.path / "etc" / "apt" / "apt.conf.d" / "test").write_text(APT)
        (system.path / "etc" / "dpkg" / "dpkg.cfg.d" / "test").write_text("force-unsafe-io\n")
        system.check(f"adduser --quiet --disabled-password --gecos '' {USER}")
        home = system.path / "home" / USER
        for package in packages.iterdir():
            shutil.copy(package, system.path / "root" if package.suffix == ".deb" else home)
        (home / "pets").mkdir()
        for name in range(64):
            (home / "pets" / f"{name}.bin").write_bytes(bytes([name]) * 10_000)
        (home / ".local" / "share").mkdir(parents=True)
        system.check(f"chown -R {USER}: /home/{USER}; chmod 755 /home/{USER}")
        assert system.check("which cc gcc g++ c++ clang || echo none") == "none\n"
        yield system
    finally:
        system.end()
        shutil.rmtree(directory, ignore_errors=True)  # half a gigabyte


@pytest.fixture(scope="module")
def root(
    larder_bin: pathlib.Path, packages: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    tar = clean_root.archive(clean_root.library_packages(larder_bin.parent))
    with boot(tar, packages, tmp_path_factory.mktemp("clean")) as system:
        yield system


@pytest.fixture(scope="module")
def image(
    larder_bin: pathlib.Path, packages: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    if why := clean_root.missing("buildah"):
        pytest.skip(f"{why}: run tools/install-packages image")
    tar = clean_root.archive(clean_root.library_packages(larder_bin.parent))
    with boot(tar, packages, tmp_path_factory.mktemp("image"), Image) as system:
        yield system


def section(repository: pathlib.Path, title: str) -> list[str]:
    """The commands of a section of docs/install.md, in order; a block of Python is one command."""
    text = (repository / "docs" / "install.md").read_text()
    (found,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```python\n(.*?)^```$|((?:^    [^\n]*\n)+)", found, re.MULTILINE | re.DOTALL)
    return [
        command
        for python, shell in blocks
        for command in ([f"python3 - <<'end'\n{python}end"] if python else re.sub(r"(?m)^    ", "", shell).splitlines())
    ]


def test_wheel_is_small_and_has_a_licence_for_each_library(packages: pathlib.Path) -> None:
    (path,) = packages.glob("*.whl")
    assert path.name.endswith("-manylinux_2_36_x86_64.whl")
    assert path.stat().st_size <= 30_000_000
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (bill,) = [json.loads(wheel.read(name)) for name in names if name.endswith(".cdx.json")]
    # auditwheel's own list of what it has copied.
    copied = {found[1] for part in bill["components"] if (found := re.match(r"pkg:deb/debian/([^@]+)", part["purl"]))}
    assert {"libcurl4", "liblmdb0", "libssl3"} <= copied
    sources = subprocess.run(
        ["dpkg-query", "-W", "-f", "${source:Package}\n", *copied], capture_output=True, text=True, check=True
    ).stdout
    licences = {name.rsplit("/", 1)[1] for name in names if "/licenses/bundled/" in name}
    assert set(sources.split()) | {"boost1.81", "cli11", "nanobind"} <= licences


def check_wheel(root: Place, repository: pathlib.Path) -> None:
    """Follows the page, which trains and then removes all that there is."""
    before = root.files()
    steps = section(repository, "A wheel, for one user")
    assert steps[0].startswith("python3 -m venv") and steps[-1].startswith("rm -r")
    said = root.check("\n".join(steps), USER)
    assert "larder daemon is up" in said and "memory for datasets" in said
    assert "epoch 1 Statistics(samples=128" in said, said
    assert "larder daemon is down" in said
    assert root.files() == before


def test_wheel_trains_and_leaves_nothing(root: Place, repository: pathlib.Path) -> None:
    check_wheel(root, repository)


def test_wheel_trains_in_an_image_and_leaves_nothing(image: Place, repository: pathlib.Path) -> None:
    check_wheel(image, repository)


def check_page(root: Place, port: int = 9464) -> None:
    """Opens the page of a daemon as a browser does: an answer with its program in it, not that there is none."""
    program = (
        "import sys, urllib.request as r; u = sys.argv[1]; html = r.urlopen(u).read().decode(); assert 'page.js' in html, html;"
        " print(len(r.urlopen(u + 'page.js').read()))"
    )
    assert int(root.check(f'python3 -c "{program}" http://127.0.0.1:{port}/')) > 50_000


def test_debs_train_in_an_image_and_leave_nothing(image: Place, repository: pathlib.Path) -> None:
    before = image.files()
    install, up, down, remove, purge = section(repository, "Debian packages in an image, without systemd")
    image.check(install)
    image.check("ls /usr/share/larder/examples/python/train_ray.py /usr/share/larder/bench/dlio/workload/*.yaml")
    image.check(f"{up}; larder dataset add pets ~/pets", USER)
    check_page(image)
    assert read_with_wheel(image) == "640000\n"
    image.check(f"{down}; {remove}", USER)
    image.check(f"{purge}; apt-get autoremove --purge")
    assert {path for path in image.files() - before if "larder" in path} == set()


def newer_python() -> pathlib.Path | None:
    """A Python of this machine whose wheel is for all versions from 3.12 on. pyenv's shims of inactive versions fail."""
    folders = [*map(pathlib.Path, os.environ["PATH"].split(":")), *pathlib.Path.home().glob(".pyenv/versions/3.1[2-9].*/bin")]
    found = [path for folder in folders if folder.name != "shims" for path in folder.glob("python3.1[2-9]")]
    return min(found, default=None)


@pytest.mark.skipif(newer_python() is None, reason="there is no Python 3.12 or later here, for the wheel of Debian 13")
def test_wheel_of_a_newer_python_trains_on_debian_13(
    larder_bin: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "wheel"
    command = ["tools/package", "--build", larder_bin.parent, "--output", folder, "--python", newer_python(), "wheel"]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stderr
    assert [path.name.split("-", 2)[2] for path in folder.iterdir()] == ["cp312-abi3-manylinux_2_36_x86_64.whl"]
    with boot(clean_root.archive([], "trixie"), folder, tmp_path / "root") as system:
        assert "13" in system.check("cat /etc/debian_version; python3 --version")
        check_wheel(system, repository)


def test_programs_of_the_wheel_work(root: Place) -> None:
    activate = ". ~/w/bin/activate"
    root.check(f"python3 -m venv --system-site-packages ~/w; {activate}; pip install --quiet larder-*.whl", USER)
    try:
        version = root.check(f"{activate}; larder --version", USER)
        for program in ("larderd", "larder-allocator"):
            assert root.check(f"{activate}; {program} --version", USER) == version.replace("larder ", f"{program} ")
        assert "floors" in root.check(f"{activate}; larder bench assign --quick", USER)
        refused = root.run(f"{activate}; larder bench dlio --quick", USER)
        assert refused.returncode != 0 and "source tree" in refused.stdout and "Traceback" not in refused.stdout
        assert "makespan" in root.check(
            f"{activate}; printf 'submit_s,duration_s,gpus\\n0,600,1\\n' >jobs.csv; larder simulate jobs.csv --gpus 2", USER
        )
        root.check(f"{activate}; larder up -d --metrics-listen 127.0.0.1:9500", USER)
        check_page(root, 9500)
        examples = "w/lib/python3*/site-packages/larder/programs/share/larder/examples/python"
        root.check(f"{activate}; larder dataset add pets pets", USER)
        assert "epoch 2" in root.check(f"{activate}; python {examples}/read_epochs.py pets --epochs 2", USER)
        assert "train_lightning.py" in root.check(f"ls {examples}", USER)
        again = root.run(f"{activate}; larder up -d", USER)
        assert again.returncode != 0 and "larder down stops it" in again.stdout
    finally:
        root.run(f"{activate}; larder down; rm -rf ~/w ~/jobs.csv ~/.local/share/larder", USER)


def cached_bytes(root: Place) -> int:
    return json.loads(root.check("larder dataset info pets --json"))["used"]["disk_bytes"]


def test_debs_run_a_service_that_survives_an_upgrade_and_is_purged(root: Place, repository: pathlib.Path) -> None:
    before = root.files()
    install, status, ask, *change, upgrade, purge = section(repository, "Debian packages, for all users of a node")
    assert purge.startswith("apt-get purge") and upgrade == install
    root.check(install)
    assert "active (running)" in root.check(status)
    assert root.check("systemctl is-enabled larderd").strip() == "enabled"
    assert "memory for datasets  1.00 GiB" in root.check(ask)
    check_page(root)
    assert root.check("stat -c %U:%G:%a /var/lib/larder /run/larder/admin.sock").split() == ["larder:larder:750", "larder:larder:660"]
    assert root.run("larder status", USER).returncode == 5, "only root and the group administer"
    root.check("\n".join(change))
    assert "memory for datasets  512.00 MiB" in root.check(ask)

    root.check(f"larder dataset add pets /home/{USER}/pets --quota-disk 64MiB --mode 0644; larder dataset warm pets")
    assert read_with_wheel(root) == "640000\n"
    held = cached_bytes(root)
    assert held >= 640_000
    process = root.check("systemctl show --property MainPID larderd")
    raise_version(root)
    root.check(upgrade)
    assert "-2" in root.check("dpkg-query -W -f '${Version}' larderd")
    assert root.check("systemctl show --property MainPID larderd") != process, "the new program runs"
    assert cached_bytes(root) == held
    assert "memory for datasets  512.00 MiB" in root.check(ask), "a config that was changed stays"

    root.check("apt-get remove larderd")
    assert root.check("systemctl is-active larderd || true").strip() == "inactive"
    assert root.check("ls /etc/larder/larderd.toml /var/lib/larder/segments")
    root.check(purge)
    root.check("apt-get autoremove --purge")
    assert {path for path in root.files() - before if "larder" in path and not path.endswith(".deb")} == set()


def raise_version(root: Place) -> None:
    """Makes the packages those of a next version, which has nothing else that is new."""
    root.check(
        "for deb in larder_*.deb larderd_*.deb; do dpkg-deb -R $deb next; rm $deb;"
        " sed -i 's/0-1\\b/0-2/' next/DEBIAN/control; dpkg-deb -Znone --build next . >/dev/null; rm -r next; done"
    )


def read_with_wheel(root: Place) -> str:
    """Reads an epoch as the user, from the daemon that is found without a flag."""
    program = "import larder; print(sum(len(s.bytes) for b in larder.Loader('pets', batch_size=8) for s in b))"
    install = "pip install --quiet --no-deps --target w larder-*.whl"
    return root.check(f'{install}; PYTHONPATH=w python3 -c "{program}"; rm -r w', USER)


def test_unknown_kind_is_named(repository: pathlib.Path) -> None:
    ran = subprocess.run(["tools/package", "rpm"], cwd=repository, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (2, 'tools/package: unknown argument "rpm"; see tools/package --help\n')


@pytest.fixture(scope="module")
def pageless(repository: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A build as CMake configures it where npm is missing. Nothing is compiled."""
    build = tmp_path_factory.mktemp("pageless")
    quiet = {"capture_output": True, "text": True, "check": True, "cwd": repository}
    subprocess.run(["cmake", "--preset", "release", "-B", build, "-DLARDER_PAGE=OFF"], **quiet)
    page_files = (build / "page" / "page_files.cc").relative_to(build)
    subprocess.run(["cmake", "--build", build, "--target", page_files], **quiet)
    return build


def test_build_without_the_page_is_not_packaged(
    pageless: pathlib.Path, repository: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # A page that an earlier configuration with npm has left says nothing.
    (pageless / "page" / "page.js").write_text("")
    for kind in ("wheel", "deb"):
        command = ["tools/package", "--build", pageless, "--output", tmp_path, kind]
        ran = subprocess.run(command, cwd=repository, capture_output=True, text=True)
        assert ran.returncode == 1 and "has no page for browsers: install npm" in ran.stderr, ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_cpack_refuses_a_build_without_the_page(pageless: pathlib.Path, tmp_path: pathlib.Path) -> None:
    ran = subprocess.run(
        ["cpack", "--config", pageless / "CPackConfig.cmake", "-B", tmp_path], capture_output=True, text=True
    )
    assert ran.returncode != 0 and "has no page for browsers: install npm" in " ".join(ran.stderr.split()), ran.stderr
    assert list(tmp_path.rglob("*.deb")) == []
