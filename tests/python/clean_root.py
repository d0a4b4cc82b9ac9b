#!/usr/bin/env python3
"""Debian as it is installed, without a compiler and without Larder's libraries: a place to install packages in. It is
a booted system (CleanRoot), or an image as containers have it, without an init (Image).

    tests/python/clean_root.py --fetch BUILD    makes the root file systems that are missing in ~/.cache/larder, or older
                                                than a week, so that the time does not count for a test
"""

from __future__ import annotations

import abc
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

WEEK_S = 7 * 24 * 3600
PROGRAMS = ("larder", "larderd", "larder-allocator", "larder-simulate", "larder-mount", "larder-bench")
INSTALLED = ("adduser", "ca-certificates", "dbus", "python3", "python3-numpy", "python3-pip", "python3-venv", "systemd-sysv")


def missing(*programs: str) -> str:
    """Why no root file system can be made or entered here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make and enter a root file system"
    needed = ("mmdebstrap", *(programs or ("systemd-nspawn",)))
    return " and ".join(f"{name} is missing" for name in needed if shutil.which(name) is None)


def library_packages(build: pathlib.Path) -> list[str]:
    """The packages of Debian with the libraries that the programs load."""
    loaded = subprocess.run(
        ["ldd", *(build / "bin" / name for name in PROGRAMS)], capture_output=True, text=True, check=True
    ).stdout
    paths = {os.path.realpath(path) for path in re.findall(r"=> (/\S+)", loaded)}
    # Debian 12 has /lib in /usr, and its packages say either.
    known = subprocess.run(
        ["dpkg-query", "-S", *(name for path in paths for name in (path, path.removeprefix("/usr")))],
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    return sorted({line.split(":")[0] for line in known.splitlines()})


def archive(packages: list[str], codename: str = "bookworm", age_s_max: float | None = None) -> pathlib.Path:
    """The root file system of a release of Debian as a tar archive, which is made if there is none. The packages are in
    apt's cache, so that apt can install them without a network."""
    name = hashlib.sha256(" ".join((codename, *INSTALLED, *packages)).encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "larder"
    path = cache / f"root-{name}.tar"
    if path.exists() and (age_s_max is None or time.time() - path.stat().st_mtime < age_s_max):
        return path
    cache.mkdir(parents=True, exist_ok=True)
    for old in cache.glob("root-*.tar"):
        if time.time() - old.stat().st_mtime > 2 * WEEK_S:
            old.unlink()
    made = cache / f".root-{os.getpid()}.tar"
    download = f"apt-get clean; apt-get install --yes --download-only --no-install-recommends {shlex.join(packages)}"
    try:
        subprocess.run(
            [
                "mmdebstrap", "--variant=apt", f"--include={','.join(INSTALLED)}", "--skip=cleanup/apt", "--quiet",
                f'--customize-hook=chroot "$1" sh -ec "{download}" >/dev/null', codename, made, *sources(codename),
            ],
            check=True,
        )  # fmt: skip
        made.rename(path)
    finally:
        made.unlink(missing_ok=True)
    return path


def sources(codename: str) -> list[str]:
    """Returns the sources for mmdebstrap: this machine's files of apt, whatever their names, which have security
    updates; or for another release than this machine's the mirror that these name."""
    fields = "Created-By: Packages", "Origin: Debian", "Codename: bookworm"
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *fields]
    found = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.split()
    if not found:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        found = subprocess.run(targets, capture_output=True, text=True, check=True).stdout.split()
    if codename != "bookworm":
        return found[:1]
    files = [path for path in pathlib.Path("/etc/apt").rglob("*") if path.suffix in (".list", ".sources")]
    return [str(path) for path in files if any(uri.rstrip("/") in path.read_text() for uri in found)]


class Place(abc.ABC):
    """Where packages are installed: a root file system at `path`, and commands that run in it, without a network."""

    path: pathlib.Path

    @abc.abstractmethod
    def _enter(self, user: str) -> list[object]:
        """The command before that of a user."""

    @abc.abstractmethod
    def end(self) -> None:
        """Ends all processes at once: nothing in the place is needed any more."""

    def run(self, script: str, user: str = "root") -> subprocess.CompletedProcess[str]:
        """Runs a script of bash as the user, in the user's home directory. stdout has the errors too."""
        home = "/root" if user == "root" else f"/home/{user}"
        return subprocess.run(
            [
                *self._enter(user), "env", "-i", f"HOME={home}", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c", f"cd; {script}",
            ],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300,
        )  # fmt: skip

    def check(self, script: str, user: str = "root") -> str:
        ran = self.run(f"set -e\n{script}", user)
        assert ran.returncode == 0, f"{script}\n{ran.stdout}"
        return ran.stdout

    def files(self) -> set[str]:
        """All files but those that a running system changes by itself."""
        listed = self.check(
            "find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp"
            " -o -path /var/log -o -path /var/cache -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \\)"
            " -prune -o -print"
        )
        return set(listed.splitlines())


class CleanRoot(Place):
    """A booted system, with an own init."""

    def __init__(self, tar: pathlib.Path, directory: pathlib.Path) -> None:
        self.path = directory / "root"
        self.path.mkdir(parents=True)
        subprocess.run(["tar", "-C", self.path, "-xf", tar], check=True)
        self._log = open(directory / "boot.log", "w")
        # The container has a tree of control groups of version 2, also where this machine mixes both versions.
        self._container = subprocess.Popen(
            [
                "systemd-nspawn", "--directory", self.path, "--boot", "--register=no", "--keep-unit", "--private-network",
                "--console=read-only", "--quiet",
            ],
            env=os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._init = ""
        try:
            self._init = self._find_init()
            deadline = time.monotonic() + 120
            while self.run("systemctl is-system-running --wait").stdout.strip() not in ("running", "degraded"):
                assert time.monotonic() < deadline, (directory / "boot.log").read_text()
                time.sleep(0.1)
        except BaseException:
            self.end()
            raise

    def _find_init(self) -> str:
        """The container's process 1 once it runs systemd: a child of systemd-nspawn sets the container up before, and
        ends."""
        children = pathlib.Path(f"/proc/{self._container.pid}/task/{self._container.pid}/children")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._container.poll() is None:
            for child in children.read_text().split():
                try:
                    program = pathlib.Path(f"/proc/{child}/cmdline").read_text().partition("\0")[0]
                except OSError:  # The child has ended.
                    continue
                if pathlib.Path(program).name in ("init", "systemd"):
                    return child
            time.sleep(0.05)
        raise AssertionError(f"systemd-nspawn started no init; {self._log.name} says why")

    def _enter(self, user: str) -> list[object]:
        return [
            "nsenter", "--target", self._init, "--all",
            "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups",
        ]  # fmt: skip

    def end(self) -> None:
        if self._init:
            os.kill(int(self._init), signal.SIGKILL)
        else:
            self._container.kill()
        self._container.wait()
        self._log.close()


class Image(Place):
    """An image that buildah makes from nothing. Its commands run as those of a Dockerfile do, with chroot isolation, in
    namespaces that end with all their processes."""

    # bash takes over, as an init does, the processes whose parents end.
    _INIT = ("bash", "-c", "ip link set lo up; echo ready; sleep infinity & wait")

    def __init__(self, tar: pathlib.Path, directory: pathlib.Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._storage = directory
        self._namespaces = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child", *self._INIT],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert self._namespaces.stdout is not None and self._namespaces.stdout.readline() == "ready\n"
            children = f"/proc/{self._namespaces.pid}/task/{self._namespaces.pid}/children"
            self._init = pathlib.Path(children).read_text().strip()
            self._container = self._buildah("from", "scratch")
            self.path = pathlib.Path(self._buildah("mount", self._container))
            subprocess.run(["tar", "-C", self.path, "-xf", tar], check=True)
        except BaseException:
            self.end()
            raise

    def _command(self, *arguments: object) -> list[object]:
        storage = ("--root", self._storage / "storage", "--runroot", self._storage / "run", "--storage-driver", "vfs")
        return ["nsenter", "--target", self._init, "--net", "--pid", "--mount", "buildah", *storage, *arguments]

    def _buildah(self, *arguments: object) -> str:
        return subprocess.run(self._command(*arguments), capture_output=True, text=True, check=True).stdout.strip()

    def _enter(self, user: str) -> list[object]:
        return self._command("run", "--isolation", "chroot", "--user", user, self._container, "--")

    def end(self) -> None:
        self._namespaces.kill()
        self._namespaces.communicate()


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--fetch":
        sys.exit(__doc__)
    if why := missing():
        print(f"clean_root.py: nothing is fetched: {why}")
    else:
        archive(library_packages(pathlib.Path(sys.argv[2])), age_s_max=WEEK_S)
        archive([], "trixie", WEEK_S)
