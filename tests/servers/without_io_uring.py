"""without_io_uring.py PROGRAM ARGUMENT...: runs a program without io_uring, as under a container's seccomp profile."""

import ctypes
import errno
import os
import sys

ALLOW = 0x7FFF0000
ERRNO = 0x00050000

seccomp = ctypes.CDLL("libseccomp.so.2")
seccomp.seccomp_init.restype = ctypes.c_void_p
seccomp.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
seccomp.seccomp_load.argtypes = [ctypes.c_void_p]

rules = seccomp.seccomp_init(ALLOW)
call = seccomp.seccomp_syscall_resolve_name(b"io_uring_setup")
if seccomp.seccomp_rule_add(rules, ERRNO | errno.EPERM, call, 0) != 0 or seccomp.seccomp_load(rules) != 0:
    sys.exit("no seccomp filter may be set here")
os.execv(sys.argv[1], sys.argv[1:])
