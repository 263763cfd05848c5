"""The layer of system calls: a filter (seccomp) that a process lays on itself and its descendants, for good.

The filter refuses what the other layers do not govern: modes, owners, times and attributes of files; sockets of every
family; limits, priorities and memory of other processes; new namespaces and mounts; interfaces of the kernel that
compute on files of the run or have had many holes (io_uring, bpf, keys, perf, userfaultfd). A call that this module
does not know, because it is newer, is refused too. Calls of another architecture (32 bits, x32) end the process.

Refused calls return EPERM, as they do where a system forbids them, so libraries go another way.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterable, Sequence

__all__ = ["checked", "filter_calls", "libc", "syscall"]

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2

# Numbers by architecture: (x86-64, AArch64); None where it does not exist. Newer calls have one number everywhere.
_METADATA = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469), "mknod": (133, None),
    "mknodat": (259, 33),
}  # fmt: skip
_WATCHING_FILES = {  # Landlock governs none of these
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "lookup_dcookie": (212, 18), "cachestat": (451, 451),
}  # fmt: skip
_SOCKETS = {
    "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
}  # fmt: skip
_SOCKET = (41, 198)
_OTHER_PROCESSES = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "setrlimit": (160, 164),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
}  # fmt: skip
_SHARED_MEMORY = {  # memory that belongs to no process would escape the limit
    "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "semget": (64, 190),
    "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191), "mq_open": (240, 180),
    "mq_unlink": (241, 181),
}  # fmt: skip
_MEMFD = (319, 279)
_SYSTEM = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "statmount": (457, 457),
    "listmount": (458, 458), "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "unshare": (272, 97), "setns": (308, 268), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "acct": (163, 89), "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "iopl": (172, None), "ioperm": (173, None),
    "modify_ldt": (154, None), "syslog": (103, 116), "vhangup": (153, 58), "nfsservctl": (180, 42),
    "seccomp": (317, 277), "sysfs": (139, None), "ustat": (136, None), "_sysctl": (156, None),
    "uselib": (134, None), "lsm_set_self_attr": (460, 460),
}  # fmt: skip
_REFUSED = (_METADATA, _WATCHING_FILES, _SOCKETS, _OTHER_PROCESSES, _SHARED_MEMORY, _SYSTEM)
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_PERSONALITY, _PRCTL, _IOCTL, _FCNTL = (135, 92), (157, 167), (16, 29), (72, 25)
_SCHEDULING = ((144, 119), (142, 118), (314, 274), (203, 122))
"""`sched_setscheduler`, `sched_setparam`, `sched_setattr`, `sched_setaffinity`."""
_SIGNALS = ((62, 129), (234, 131), (129, 138), (297, 240))
"""`kill`, `tgkill`, `rt_sigqueueinfo`, `rt_tgsigqueueinfo`: the first argument is a process."""
_TKILL = (200, 130)
_NEWEST = 468
"""The newest call whose effect is known here."""

_NEW_NAMESPACES = 0x7E020000
_REFUSED_PRCTL = (1, 22, 35, 62, 0x59616D61)
"""To outlive the keeper, another filter, the layout of memory, shared cores, who may trace."""
_REFUSED_IOCTL = (
    *(0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40806685, 0x41009432, 0xC0506617, 0x800C6613),
    *(0x5412, 0x541C),
)
"""Attributes, version, verity, label and encryption of a file that may only be read; input to a terminal."""
_REFUSED_FCNTL = (8, 10, 15, 1024, 1026, 1036, 1038)
"""Signals to others at input, leases and notes on directories, hints kept with a file."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_KILL, _ALLOW, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _GREATER, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_AF_UNIX, _DATAGRAM = 1, 2
Step = tuple[int, int, int, int]
"""A step of the filter: operation, steps to skip if it holds, if not, operand."""


def libc() -> ctypes.CDLL:
    """Return the C library, with `errno` kept."""
    return ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """Make a system call that the C library has no function for."""
    return int(libc().syscall(number, *arguments))


def checked(result: int) -> int:
    """Return the result of a call.

    Raises:
        OSError: it is an error.
    """
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def filter_calls(alone: bool, accelerator: bool) -> None:
    """Lay the filter on this process, which must have one thread, and on all that it will start.

    Args:
        alone: whether the process sees no others than its descendants; if not, it may signal only itself.
        accelerator: whether drivers need memory with a descriptor, and local sockets, which lead nowhere.

    Raises:
        OSError: the system has no such filter, or this machine's calls are not known here.
    """
    column, architecture = _ARCHITECTURES.get(platform.machine(), (0, 0))
    if sys.platform != "linux" or not architecture or sys.maxsize < 2**32:
        raise OSError(errno.ENOSYS, f"system calls of {platform.machine()} are not known")
    program: list[Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if column == 0:  # x32: the numbers of x86-64 with a bit on top
        program += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    refused = set[int]()
    for group in _REFUSED:
        for by_architecture in group.values():
            call = by_architecture[column]
            if call is not None:
                refused.add(call)
    exception = {_SOCKETS["socketpair"][column]} if accelerator else {_MEMFD[column]}
    for number in sorted(refused ^ exception):
        error = errno.ECONNREFUSED if number == _SOCKETS["connect"][column] else errno.EPERM
        program += _where(number, [(_RETURN, 0, 0, _ERROR | error)])
    # The library then uses `clone`.
    program += _where(_CLONE3[column], [(_RETURN, 0, 0, _ERROR | errno.ENOSYS)])
    for numbers, steps in _conditions(alone, accelerator):
        program += _where(numbers[column], [*steps, (_RETURN, 0, 0, _ALLOW)])
    program += [(_GREATER, 0, 1, _NEWEST), (_RETURN, 0, 0, _ERROR | errno.ENOSYS), (_RETURN, 0, 0, _ALLOW)]
    packed = b"".join(struct.pack("=HBBI", *step) for step in program)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    checked(libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    checked(libc().prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0))


def _conditions(alone: bool, accelerator: bool) -> Iterable[tuple[tuple[int, int], Sequence[Step]]]:
    """Yield the calls that are refused for some arguments only."""
    yield _CLONE, [_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _REFUSE]
    # Another process's limits; own limits may be read but not set.
    yield _PRLIMIT, [*_unless(0, 0), *_unless(2, 0), *_unless(2, 0, high=True)]
    yield _PERSONALITY, _unless(0, 0xFFFFFFFF)
    yield _PRCTL, _if_any(0, _REFUSED_PRCTL)
    yield _IOCTL, _if_any(1, _REFUSED_IOCTL)
    yield _FCNTL, _if_any(1, _REFUSED_FCNTL)
    for numbers in _SCHEDULING:
        yield numbers, _unless(0, 0)
    for numbers in () if alone else _SIGNALS:
        yield numbers, _unless(0, os.getpid())
    if not alone:
        yield _TKILL, [_REFUSE]
    if accelerator:  # drivers look for a service; datagrams could be sent without a connection
        local = [*_unless(0, _AF_UNIX), _argument(1), (0x54, 0, 0, 0xF), (_EQUAL, 0, 1, _DATAGRAM), _REFUSE]
        yield _SOCKET, local
    else:
        yield _SOCKET, [_REFUSE]


_REFUSE: Step = (_RETURN, 0, 0, _ERROR | errno.EPERM)


def _where(number: int, steps: Sequence[Step]) -> list[Step]:
    """Return steps that only a call of this number takes; they must end with a return."""
    return [(_EQUAL, 0, len(steps), number), *steps]


def _argument(place: int, high: bool = False) -> Step:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * place + 4 * high)


def _unless(place: int, value: int, high: bool = False) -> list[Step]:
    """Return steps that refuse the call unless half of an argument has this value."""
    return [_argument(place, high), (_EQUAL, 1, 0, value), _REFUSE]


def _if_any(place: int, values: Sequence[int]) -> list[Step]:
    """Return steps that refuse the call if the lower half of an argument has one of these values."""
    steps = [_argument(place)]
    for value in values:
        steps += [(_EQUAL, 0, 1, value), _REFUSE]
    return steps
