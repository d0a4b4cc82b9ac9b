"""Tells which Debian package a header in <> comes from, so that a fresh machine installs every header included."""

import re

LIST = "tools/install-packages"

_STANDARD = re.compile(r"[a-z_0-9]+")  # <vector>: no suffix, no folder
_C_LIBRARY = re.compile(r"(?:(?:sys|arpa|net|netinet|linux|asm|asm-generic)/[\w/]+|[a-z0-9_]+)\.h")
PACKAGE_OF = {
    "CLI/": "libcli11-dev",
    "Python.h": "python3-dev",
    "archive.h": "libarchive-dev",
    "archive_entry.h": "libarchive-dev",
    "benchmark/": "libbenchmark-dev",
    "boost/": "libboost1.81-dev",
    "boost/json": "libboost-json1.81-dev",
    "boost/url": "libboost-url1.81-dev",
    "coin/Cbc": "coinor-libcbc-dev",
    "coin/Clp": "coinor-libclp-dev",
    "coin/Coin": "coinor-libcoinutils-dev",
    "coin/OsiClp": "coinor-libclp-dev",
    "curl/": "libcurl4-openssl-dev",
    "fmt/": "libfmt-dev",
    "gmock/": "libgmock-dev",
    "gtest/": "libgtest-dev",
    "isa-l/": "libisal-dev",
    "fuse3/fuse_lowlevel.h": "libfuse3-dev",
    "liburing.h": "liburing-dev",
    "lmdb.h": "liblmdb-dev",
    "openssl/": "libssl-dev",
    "prometheus/": "prometheus-cpp-dev",
    "pugixml.hpp": "libpugixml-dev",
    "seccomp.h": "libseccomp-dev",
    "spdlog/": "libspdlog-dev",
    "toml++/": "libtomlplusplus-dev",
    "zstd.h": "libzstd-dev",
}
# Not a Debian package: the build of the Python package requires it by name and pip installs it.
_BY_PIP = ("nanobind/",)


def package_of(header: str) -> str | None:
    prefixes = [prefix for prefix in PACKAGE_OF if header.startswith(prefix)]
    return PACKAGE_OF[max(prefixes, key=len)] if prefixes else None


def is_everywhere(header: str) -> bool:
    """True if the compiler, the C library or a build requirement of the Python package brings the header."""
    if package_of(header):
        return False
    return bool(header.startswith(_BY_PIP) or _STANDARD.fullmatch(header) or _C_LIBRARY.fullmatch(header))
