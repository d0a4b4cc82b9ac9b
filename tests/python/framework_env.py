#!/usr/bin/python3
"""framework_env.py: an environment with the training frameworks that Larder is tested with, which need PyTorch 2.

    tests/python/framework_env.py              prints its interpreter; exits with 1 if the environment is not there
    tests/python/framework_env.py --install    makes it if it is not there: 2 GB to fetch, 7 GB on the disk
    tests/python/framework_env.py --lock       writes framework_packages.txt anew, with the newest versions that fit

Debian has PyTorch 1.13. The environment is in ~/.cache/larder (or $XDG_CACHE_HOME/larder), named after a hash of
framework_packages.txt, and all clones share it. It has no Larder: `python_path` is what to put on PYTHONPATH. PyTorch's
wheel is the one for CUDA, which does not load without CUDA's libraries; those that no CPU needs are left out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
LOCK = HERE / "framework_packages.txt"
PACKAGES = (
    "accelerate", "grain", "h5py", "hydra-core", "jax", "mpi4py", "mpich", "omegaconf", "orbax-checkpoint", "pillow",
    "pytorch-lightning", "ray[train]", "tensorflow-cpu", "torch", "torchdata", "transformers",
)  # fmt: skip
# DLIO asks for TensorFlow, DALI and others, which it loads only where its configuration says so.
WITHOUT_DEPENDENCIES = ("dlio-benchmark==2.0.0", "pydftracer==1.0.2")
# For compiling on a GPU.
LEFT_OUT = {"triton", "cuda-bindings", "cuda-pathfinder", "cuda-toolkit", "nvidia-cuda-cccl"}
KEPT_S = 14 * 24 * 3600
BASE = "/usr/bin/python3"  # the interpreter that the Larder extension of build/venv is for


def folder() -> pathlib.Path:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "larder"
    return cache / f"frameworks-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]}"


def interpreter() -> pathlib.Path | None:
    """The environment's interpreter; None if the environment is not there."""
    made = folder()
    return made / "bin" / "python" if (made / "complete").exists() else None


def python_path(directory: pathlib.Path) -> pathlib.Path:
    """A folder for PYTHONPATH with this interpreter's Larder, and nothing else of its environment. Made if missing."""
    import larder

    package = pathlib.Path(larder.__file__).parent
    directory.mkdir(exist_ok=True)
    link = directory / "larder"
    if not link.exists():
        link.symlink_to(package)
    return directory


def install() -> pathlib.Path:
    """Makes the environment if it is not there. Safe if several processes do so."""
    made = folder()
    made.parent.mkdir(parents=True, exist_ok=True)
    with open(made.parent / "frameworks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "complete").exists():
            for old in made.parent.glob("frameworks-*"):
                # An unfinished one, or one that no clone is likely to use.
                if not (old / "complete").exists() or time.time() - (old / "complete").stat().st_mtime > KEPT_S:
                    shutil.rmtree(old)
            subprocess.run([BASE, "-m", "venv", made], check=True)
            pip = [made / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-deps", "--no-cache-dir", "--require-hashes", "-r", LOCK], check=True)
        (made / "complete").touch()
    return made / "bin" / "python"


def lock() -> None:
    wanted: dict[str, str] = {}
    for arguments in (["--ignore-installed", *PACKAGES], ["--ignore-installed", "--no-deps", *WITHOUT_DEPENDENCIES]):
        pip = [BASE, "-m", "pip", "install", "--quiet", "--break-system-packages", "--dry-run", "--report", "-"]
        report = subprocess.run([*pip, *arguments], stdout=subprocess.PIPE, check=True).stdout
        for package in json.loads(report)["install"]:
            name, version = package["metadata"]["name"], package["metadata"]["version"]
            digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
            wanted[name.lower().replace("_", "-")] = f"{name}=={version} --hash=sha256:{digest}\n"
    lines = [line for name, line in sorted(wanted.items()) if name not in LEFT_OUT]
    LOCK.write_text("# Written by framework_env.py --lock, for CPython 3.11 on x86-64.\n" + "".join(lines))


def main() -> None:
    if sys.argv[1:] == ["--lock"]:
        lock()
    elif sys.argv[1:] == ["--install"]:
        print(install())
    elif sys.argv[1:]:
        sys.exit(__doc__)
    elif (found := interpreter()) is not None:
        print(found)
    else:
        sys.exit(1)


if __name__ == "__main__":
    main()
