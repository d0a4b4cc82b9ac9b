"""What can go wrong, as exceptions. All derive from `Error`; the message says what failed, on what, and what to do."""

from __future__ import annotations


class Error(Exception):
    """Anything Larder reports. `code` is its stable name, `system_errno` the kernel's number, or 0."""

    code: str = "internal"

    def __init__(self, message: str = "", system_errno: int = 0) -> None:
        super().__init__(message)
        self.system_errno = system_errno


class InvalidArgument(Error, ValueError):
    """An argument that cannot be; the message says what is allowed."""

    code = "invalid_argument"


class NotFound(Error):
    """No such dataset, object or daemon socket."""

    code = "not_found"


class AlreadyExists(Error):
    """A name that is taken."""

    code = "already_exists"


class PermissionDenied(Error):
    """The dataset's owner, group and mode do not let this user read it."""

    code = "permission_denied"


class Unavailable(Error):
    """No daemon answers, and the time to wait for one is over."""

    code = "unavailable"


class Corrupt(Error):
    """Bytes on disk that are not what was written; never samples, which are checked and fetched again."""

    code = "corrupt"


class ObjectChanged(Error):
    """A remote object is no longer what was indexed; index the dataset again."""

    code = "changed"


class NoSpace(Error):
    """A file system is full, or batches that are kept leave the loader no memory (raise `memory_budget`)."""

    code = "no_space"


class ReadFailed(Error):
    """The remote or a disk failed; see `system_errno`."""

    code = "io"


class Timeout(Error, TimeoutError):
    """What was waited for did not come in time."""

    code = "timeout"


class ProtocolError(Error):
    """The daemon said what this client does not understand: their versions differ."""

    code = "protocol"


class Unsupported(Error):
    """Something this version, kernel or file system cannot do."""

    code = "unsupported"


class Cancelled(Error):
    """A wait that was ended from outside."""

    code = "cancelled"


class InternalError(Error):
    """A mistake of Larder's own; please report it."""

    code = "internal"


class DecodeError(Error):
    """The `decode` of a loader failed on a sample; the message names it, `__cause__` is what `decode` raised."""

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
