"""Larder's exceptions. All derive from `Error`; the message says what failed, on what, and what to do."""

from __future__ import annotations


class Error(Exception):
    """Any error that Larder reports. `code` is its stable name, `system_errno` the kernel's number, or 0."""

    code: str = "internal"

    def __init__(self, message: str = "", system_errno: int = 0) -> None:
        super().__init__(message)
        self.system_errno = system_errno


class InvalidArgument(Error, ValueError):
    """An argument is invalid; the message says what is allowed."""

    code = "invalid_argument"


class NotFound(Error):
    """No such dataset, object or daemon socket."""

    code = "not_found"


class AlreadyExists(Error):
    """The name is taken."""

    code = "already_exists"


class PermissionDenied(Error):
    """The dataset's owner, group and mode do not let this user read it."""

    code = "permission_denied"


class Unavailable(Error):
    """No daemon answered in the time allowed."""

    code = "unavailable"


class Corrupt(Error):
    """Bytes on disk differ from those that were written. Never samples: these are checked and fetched again."""

    code = "corrupt"


class ObjectChanged(Error):
    """A remote object has changed since it was indexed; index the dataset again."""

    code = "changed"


class NoSpace(Error):
    """A file system is full, or held batches leave the loader no memory (raise `memory_budget`)."""

    code = "no_space"


class ReadFailed(Error):
    """The remote or a disk failed; see `system_errno`."""

    code = "io"


class Timeout(Error, TimeoutError):
    """An operation did not finish in time."""

    code = "timeout"


class ProtocolError(Error):
    """The client does not understand the daemon's message: their versions differ."""

    code = "protocol"


class Unsupported(Error):
    """This version, kernel or file system cannot do what was asked."""

    code = "unsupported"


class Cancelled(Error):
    """A wait was ended from outside."""

    code = "cancelled"


class InternalError(Error):
    """A bug in Larder; please report it."""

    code = "internal"


class DecodeError(Error):
    """A loader's `decode` failed on a sample. The message names the sample, `__cause__` is what `decode` raised."""

    code = "decode"


BY_CODE: dict[str, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        Unavailable,
        Corrupt,
        ObjectChanged,
        NoSpace,
        ReadFailed,
        Timeout,
        ProtocolError,
        Unsupported,
        Cancelled,
        InternalError,
    )
}

for _kind in (Error, DecodeError, *BY_CODE.values()):
    _kind.__module__ = "larder"
