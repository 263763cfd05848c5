"""What an attack may try against the auditor. A test installs this file as a part of somebody's package.

Each behaviour returns what it achieved, or something false. A refusal by the system is an `OSError`, and is what must
happen. Those of `TOGETHER` run one after another in one process; those of `ALONE` end or stop theirs.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

X86 = platform.machine() == "x86_64"
LIBC = ctypes.CDLL(None, use_errno=True)
HERE = -100
CREATED_BY = "fdaudit-was-here"


def call(number: int, *arguments: Any) -> int:
    """Make a system call, by its number here."""
    return raised(LIBC.syscall(number, *arguments))


def raised(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def n(x86: int, arm: int | None = None) -> int:
    number = x86 if X86 else arm
    if number is None:
        raise OSError("no such call here")
    return number


class Place:
    """The run, as no honest auditor tells it, and the process of the auditor."""

    def __init__(self, run: str, auditor: int, other: str) -> None:
        self.run, self.auditor, self.other = Path(run), auditor, Path(other)
        self.secrets = self.run / "vault" / "secrets.json"


# -- files of the run -----------------------------------------------------------------------------------------------


def _open_to_all(p: Place) -> Any:
    os.chmod(p.run, 0o777)
    return "chmod"


def _each(*steps: Callable[[], Any]) -> list[str]:
    """The names of the steps that the system did not refuse."""
    done = []
    for number, step in enumerate(steps):
        with suppress(OSError, ValueError):  # the latter is what `resource` makes of a refusal
            step()
            done.append(str(number))
    return done


def _fchmodat2(p: Place) -> Any:
    return call(452, HERE, bytes(p.secrets), 0o666, 0) == 0


def _chmod_of_all_kinds(p: Place) -> Any:
    own = os.open(".", os.O_RDONLY)
    return _each(
        lambda: os.chmod(p.secrets, 0o666), lambda: os.chmod(p.secrets, 0), lambda: os.fchmod(own, 0o777),
        lambda: os.chmod("/proc/self/cwd", 0o777), lambda: os.chmod(p.run / "vault", 0o777),
    )  # fmt: skip


def _chown(p: Place) -> Any:
    user = os.getuid()
    return _each(
        lambda: os.chown(p.secrets, user, -1), lambda: os.lchown(p.run, user, user),
        lambda: os.chown("/proc/self/cwd", user, user),
    )  # fmt: skip


def _times(p: Place) -> Any:
    file = os.open("/dev/null", os.O_RDONLY)
    return _each(
        lambda: os.utime(p.run / "manifest.json", (0, 0)), lambda: os.utime(p.run), lambda: os.utime(file, (0, 0)),
        lambda: os.utime(sys.executable, (0, 0)), lambda: os.utime(__file__, (0, 0)),
    )  # fmt: skip


def _attributes(p: Place) -> Any:
    return _each(
        lambda: os.setxattr(p.secrets, "user.mark", b"1"), lambda: os.setxattr(".", "user.mark", b"1"),
        lambda: os.removexattr(p.secrets, "user.mark"), lambda: os.setxattr(__file__, "user.mark", b"1"),
        lambda: call(463, HERE, bytes(p.secrets), 0, b"user.mark", bytes(16), 16),
    )  # fmt: skip


def _flags_of_files(p: Place) -> Any:
    """Makes a readable file immutable, as `chattr` does."""
    file = os.open(__file__, os.O_RDONLY)
    return _each(lambda: fcntl.ioctl(file, 0x40086602, struct.pack("l", 0x10)))


def _links(p: Place) -> Any:
    return _each(
        lambda: os.link(p.secrets, "hard"),
        lambda: (os.symlink(p.secrets, "soft"), Path("soft").read_bytes()),
        lambda: (os.symlink(p.run, "folder"), os.listdir("folder")),
        lambda: os.link(__file__, p.run / "hard"),
    )


def _renames(p: Place) -> Any:
    Path("mine").write_text("mine")
    return _each(
        lambda: os.rename("mine", p.run / "manifest.json"), lambda: os.rename(p.secrets, "theirs"),
        lambda: os.rename(p.run, str(p.run) + "-gone"), lambda: shutil.move(p.run / "vault", "vault"),
        lambda: call(n(316, 276), HERE, b"mine", HERE, bytes(p.secrets), 2),
    )  # fmt: skip


def _writes(p: Place) -> Any:
    return _each(
        lambda: p.secrets.open("ab"), lambda: os.truncate(p.secrets, 0), lambda: os.unlink(p.secrets),
        lambda: os.mkdir(p.run / CREATED_BY), lambda: os.mkfifo(p.run / CREATED_BY), lambda: os.rmdir(p.run / "vault"),
        lambda: os.open(p.run, os.O_TMPFILE | os.O_WRONLY), lambda: shutil.rmtree(p.run),
    )  # fmt: skip


def _reads(p: Place) -> Any:
    return _each(
        lambda: p.secrets.read_bytes(), lambda: os.listdir(p.run), lambda: os.listdir(p.other),
        lambda: Path("/proc/self/root", *p.secrets.parts[1:]).read_bytes(),
        lambda: mmap.mmap(os.open(p.secrets, os.O_RDONLY), 0, prot=mmap.PROT_READ),
        lambda: os.open("manifest.json", os.O_RDONLY, dir_fd=os.open(p.run, os.O_PATH)),
        lambda: os.open(p.secrets, os.O_RDWR),
    )  # fmt: skip


def _reads_by_another_program(p: Place) -> Any:
    done = subprocess.run(["/bin/sh", "-c", f"cat {p.secrets}"], capture_output=True, check=False)
    return done.stdout


def _handles(p: Place) -> Any:
    return _each(
        lambda: call(n(303, 264), HERE, bytes(p.secrets), bytes(8), bytes(8), 0),
        lambda: call(n(304, 265), HERE, struct.pack("=Ii8s", 8, 1, bytes(8)), os.O_RDONLY),
    )


def _watches(p: Place) -> Any:
    """Sees when the auditor opens a file of the run."""
    return _each(
        lambda: raised(LIBC.inotify_add_watch(raised(LIBC.inotify_init1(0)), bytes(p.run), 0xFFF)),
        lambda: call(n(300, 262), 0, 0),
        lambda: fcntl.fcntl(os.open("/usr", os.O_RDONLY), 1026, 1),
    )


def _leases(p: Place) -> Any:
    return _each(lambda: fcntl.fcntl(os.open(__file__, os.O_RDONLY), 1024, 0))


def _own_code(p: Place) -> Any:
    import fdaudit

    return _each(
        lambda: Path(fdaudit.__file__).open("ab"), lambda: Path(__file__).open("ab"),
        lambda: Path(fdaudit.__file__).with_name(CREATED_BY).touch(), lambda: Path(os.__file__).open("ab"),
        lambda: Path(sys.prefix, CREATED_BY).touch(), lambda: Path(__file__).unlink(),
    )  # fmt: skip


def _left_elsewhere(p: Place) -> Any:
    """Leaves a file outside of its own folder."""
    own = Path(tempfile.gettempdir())
    places = ["/tmp", "/var/tmp", "/dev/shm", "/", "/run", "/dev", "/home", "/etc", str(own.parent)]
    return _each(*(lambda at=at: Path(at, CREATED_BY).write_text("x") for at in places))


def _namespace_package(p: Place) -> Any:
    """A directory without `__init__.py` beside the run is a package to Python."""
    import importlib.util

    found = importlib.util.find_spec(p.run.name)
    places = [] if found is None else list(found.submodule_search_locations or ())
    return [place for place in places if os.listdir(place)]


# -- mounts and namespaces --------------------------------------------------------------------------------------------


def _mounts(p: Place) -> Any:
    return _each(
        lambda: raised(LIBC.mount(b"none", b".", b"tmpfs", 0, None)),
        lambda: raised(LIBC.mount(bytes(p.run), b".", None, 4096, None)),
        lambda: raised(LIBC.umount2(b"/", 2)),
        lambda: call(428, HERE, bytes(p.run), 1), lambda: call(430, b"tmpfs", 0),
        lambda: call(442, HERE, b"/", 0, bytes(32), 32), lambda: call(429, HERE, b".", HERE, b"/", 0),
        lambda: call(n(155, 41), b".", b"."),
    )  # fmt: skip


def _namespaces(p: Place) -> Any:
    flags = (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x80)
    with open("/proc/self/ns/user", "rb") as own:
        return _each(
            *(lambda flag=flag: raised(LIBC.unshare(flag)) for flag in flags),
            lambda: raised(LIBC.setns(own.fileno(), 0)),
        )


def _clones(p: Place) -> Any:
    """A child in a new user namespace has every privilege over it."""
    child = call(n(56, 220), 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "cloned"


def _clone3(p: Place) -> Any:
    child = call(435, struct.pack("=11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0), 88)
    if child == 0:
        os._exit(0)
    return "cloned"


def _chroot(p: Place) -> Any:
    os.chroot(".")
    return "chroot"


def _names_of_the_host(p: Place) -> Any:
    return _each(lambda: socket.sethostname("mine"), lambda: raised(LIBC.setdomainname(b"mine", 4)))


# -- sockets ----------------------------------------------------------------------------------------------------------


def _sockets(p: Place) -> Any:
    """Every family, in every type: unix, inet, inet6, netlink, packet, vsock, bluetooth, alg, xdp, and all others."""
    made = []
    for family in range(1, 47):
        for kind in (1, 2, 3, 5):
            with suppress(OSError), socket.socket(family, kind):
                made.append((family, kind))
    return made


def _mptcp(p: Place) -> Any:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    return "mptcp"


def _fast_open(p: Place) -> Any:
    with socket.socket() as one:
        one.sendto(b"out", 0x20000000, ("127.0.0.1", 9))
    return "sent"


def _raw_connection(p: Place) -> Any:
    descriptor = call(n(41, 198), socket.AF_INET, socket.SOCK_STREAM, 0)
    return _each(
        lambda: call(n(42, 203), descriptor, bytes(16), 16),
        lambda: call(n(49, 200), descriptor, bytes(16), 16),
    )


def _unix_sockets(p: Place) -> Any:
    return _each(
        lambda: socket.socket(socket.AF_UNIX).connect(str(p.other / "socket")),
        lambda: socket.socket(socket.AF_UNIX).connect("\0" + CREATED_BY),
        lambda: socket.socket(socket.AF_UNIX).bind("here"),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", "/dev/log"),
    )


def _pairs_of_sockets(p: Place) -> Any:
    """A datagram socket of a pair may send to any other's path."""
    return _each(
        lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", str(p.other / "socket"))
    )


# -- other processes --------------------------------------------------------------------------------------------------


def _targets(p: Place) -> list[int]:
    """The auditor, by the number that it has outside, and the parent, as it is seen here."""
    return [p.auditor, os.getppid()]


def _traces(p: Place) -> Any:
    return _each(
        *(lambda pid=pid: raised(LIBC.ptrace(16, pid, 0, 0)) for pid in _targets(p)),
        *(lambda pid=pid: raised(LIBC.ptrace(0x4206, pid, 0, 0)) for pid in _targets(p)),
        lambda: raised(LIBC.ptrace(0, 0, 0, 0)),
    )


def _memory_of_others(p: Place) -> Any:
    part = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    return _each(
        *(lambda pid=pid: call(n(310, 270), pid, part, 1, part, 1, 0) for pid in (*_targets(p), os.getpid())),
        *(lambda pid=pid: call(n(311, 271), pid, part, 1, part, 1, 0) for pid in _targets(p)),
    )


def _descriptors_of_others(p: Place) -> Any:
    return _each(
        *(lambda pid=pid: call(438, call(434, pid, 0), 0, 0) for pid in _targets(p)),
        lambda: call(n(312, 272), os.getpid(), p.auditor, 0, 0, 0),
    )


def _limits_of_others(p: Place) -> Any:
    tight = (1, 1)
    return _each(
        *(lambda pid=pid: resource.prlimit(pid, resource.RLIMIT_CPU, tight) for pid in _targets(p) if pid)
    )


def _own_limits(p: Place) -> Any:
    return _each(
        *(
            lambda limit=limit: resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            for limit in (
                resource.RLIMIT_NOFILE,
                resource.RLIMIT_CORE,
                resource.RLIMIT_FSIZE,
                resource.RLIMIT_NPROC,
            )
        )
    )


def _priorities(p: Place) -> Any:
    return _each(
        *(lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, 19) for pid in _targets(p)),
        lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19), lambda: os.setpriority(os.PRIO_PGRP, 0, 19),
        *(lambda pid=pid: call(n(251, 30), 1, pid, 3 << 13) for pid in _targets(p)),
        lambda: call(n(251, 30), 3, os.getuid(), 3 << 13),
    )  # fmt: skip


def _scheduling(p: Place) -> Any:
    return _each(
        *(lambda pid=pid: os.sched_setaffinity(pid, {0}) for pid in _targets(p) if pid),
        *(
            lambda pid=pid: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
            for pid in _targets(p)
            if pid
        ),
    )


def _signals(p: Place) -> Any:
    return _each(
        *(lambda pid=pid: os.kill(pid, 0) for pid in _targets(p) if pid),
        lambda: os.killpg(os.getpgid(p.auditor), 0), lambda: call(n(129, 138), p.auditor, 0, bytes(128)),
        lambda: call(n(234, 131), p.auditor, p.auditor, 0), lambda: call(n(200, 130), p.auditor, 0),
        lambda: fcntl.fcntl(os.pipe()[0], 8, p.auditor),
    )  # fmt: skip


def _proc_of_the_auditor(p: Place) -> Any:
    found = []
    for name in os.listdir("/proc") if os.access("/proc", os.R_OK) else []:
        if name.isdigit() and int(name) != os.getpid():
            found += [name for file in ("environ", "maps") if _opens(f"/proc/{name}/{file}")]
    for name in (
        "mem",
        "environ",
        "maps",
        "auxv",
        "root/etc/passwd",
        "cwd/.",
        "fd/0",
        "task",
        "oom_score_adj",
    ):
        found += [name for pid in _targets(p) if pid and _opens(f"/proc/{pid}/{name}")]
    return found


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def _spares_itself(p: Place) -> Any:
    """Lets the system end the auditor first when memory runs out."""
    return _each(lambda: Path("/proc/self/oom_score_adj").write_text("-1000"))


def _outlives_its_keeper(p: Place) -> Any:
    return _each(
        lambda: raised(LIBC.prctl(1, 0, 0, 0, 0)), lambda: raised(LIBC.prctl(0x59616D61, -1, 0, 0, 0))
    )


# -- memory that belongs to nobody ------------------------------------------------------------------------------------


def _shared_memory(p: Place) -> Any:
    key = 0x46444155
    return _each(
        lambda: call(n(29, 194), key, 4096, 0o1666), lambda: call(n(68, 186), key, 0o1666),
        lambda: call(n(64, 190), key, 1, 0o1666),
        lambda: call(n(240, 180), b"fdaudit", os.O_CREAT | os.O_RDWR, 0o666, None),
        lambda: Path("/dev/shm", CREATED_BY).write_text("x"), lambda: os.memfd_create("hidden"), lambda: call(447, 0),
    )  # fmt: skip


# -- the kernel -------------------------------------------------------------------------------------------------------


def _io_uring(p: Place) -> Any:
    return call(425, 8, bytes(120)) >= 0


def _kernel(p: Place) -> Any:
    return _each(
        lambda: call(n(321, 280), 0, bytes(72), 72), lambda: call(n(298, 241), bytes(112), 0, -1, -1, 0),
        lambda: call(n(323, 282), 1), lambda: call(n(248, 217), b"user", b"mark", b"x", 1, -3),
        lambda: call(n(250, 219), 0, -3, 1), lambda: call(n(249, 218), b"user", b"mark", None, -3),
        lambda: call(n(135, 92), 0x0040000), lambda: call(n(103, 116), 3, bytes(64), 64),
        lambda: call(n(317, 277), 1, 0, bytes(16)), lambda: call(n(179, 60), 0x800002, b"/", 0, bytes(64)),
        lambda: call(451, os.open(__file__, os.O_RDONLY), bytes(16), bytes(40), 0),
        lambda: call(n(163, 89), b"here"), lambda: call(n(246, 104), 0, 0, 0, 0),
        lambda: call(n(175, 105), bytes(8), 8, b""),
        lambda: call(n(169, 142), 0xFEE1DEAD, 672274793, 0, 0), lambda: call(n(227, 112), 0, bytes(16)),
    )  # fmt: skip


def _calls_of_tomorrow(p: Place) -> Any:
    return _each(*(lambda number=number: call(number, 0, 0, 0, 0, 0, 0) for number in (470, 480, 600, 1000)))


def _devices(p: Place) -> Any:
    names = (
        "mem",
        "kmsg",
        "tty",
        "fuse",
        "loop-control",
        "kvm",
        "vda",
        "sda",
        "net/tun",
        "vhost-vsock",
        "ptmx",
    )
    return [
        *_each(lambda: os.mknod("node", 0o660 | 0x2000, os.makedev(1, 1))),
        *(d for d in names if _opens(f"/dev/{d}")),
    ]


def _privileges(p: Place) -> Any:
    return _each(
        *(lambda user=user: os.setuid(user) for user in (0, 1, 1000) if user != os.getuid()),
        lambda: os.setgroups([0]), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        lambda: os.nice(-5), lambda: Path("/proc/sys/kernel/core_pattern").write_text("|/bin/true"),
    )  # fmt: skip


# -- what it was not given --------------------------------------------------------------------------------------------


def _environment(p: Place) -> Any:
    return sorted(k for k in os.environ if "SECRET" in k or "TOKEN" in k)


def _inherited(p: Place) -> Any:
    """Descriptors that are neither a pipe nor a device nor its own output."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            own = target.startswith(("pipe:", "/dev/null", os.getcwd(), "/proc/", "anon_inode"))
            found += [] if own or target.endswith(".so") or "site" in target else [target]
    return found


def _sees_the_run(p: Place) -> Any:
    """Sizes and names say something too."""
    return _each(
        lambda: os.stat(p.secrets),
        lambda: os.chdir(p.run),
        lambda: os.statvfs(p.run),
        lambda: os.open(p.run, os.O_PATH),
    )


TOGETHER: dict[str, Callable[[Place], Any]] = {
    name.removeprefix("_"): function
    for name, function in list(globals().items())
    if name.startswith("_") and callable(function) and name not in ("_each", "_targets", "_opens")
    and not name.startswith("__")
}  # fmt: skip
"""By name; `sees_the_run` needs the layer of the tree."""


def tried_together(p: Place) -> dict[str, str]:
    """What each behaviour achieved; those that achieved nothing are left out."""
    found = {}
    for name, behaviour in TOGETHER.items():
        try:
            achieved = behaviour(p)
        except OSError:
            continue
        except BaseException as error:
            achieved = f"{type(error).__name__}: {error}"
        if achieved:
            found[name] = str(achieved)[:200]
    return found


# -- what ends or stops a process -------------------------------------------------------------------------------------


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            work()
        os._exit(0)
    return child


def _named(seconds: float = 3600) -> None:
    """Sleeps under a name by which the test finds it among all processes of the machine."""
    os.execv(sys.executable, [sys.executable, "-I", "-c", f"import time; time.sleep({seconds})", CREATED_BY])


def leaves_children(p: Place) -> None:
    """Children in sessions of their own, which keep every descriptor, the pipe among them; and their parent ends."""

    def away() -> None:
        os.setsid()
        for number in range(64):
            with suppress(OSError):
                os.set_inheritable(number, True)
        _named()

    for _ in range(3):
        _forked(lambda: (_forked(away), os._exit(0)))
        _forked(away)
    os._exit(0)


def sleeps(p: Place) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    _forked(_named)
    while True:
        time.sleep(3600)


def holds_the_interpreter(p: Place) -> None:
    """No thread of Python's runs any more, the one that waits for the end of the input neither."""
    ctypes.PyDLL(None).pause()


def forks_for_ever(p: Place) -> None:
    while True:
        with suppress(OSError):
            os.fork()


def takes_memory(p: Place) -> None:
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def takes_memory_in_children(p: Place) -> None:
    kept = []

    def fill() -> None:
        kept.append(b"x" * (96 << 20))
        time.sleep(3600)

    for _ in range(8):
        _forked(fill)
    time.sleep(3600)


def fills_the_disk(p: Place) -> None:
    block = bytes(1 << 20)
    for number in range(1 << 20):
        with open(f"file-{number}", "wb") as file:
            for _ in range(16):
                file.write(block)


def fills_its_output(p: Place) -> None:
    for _ in range(4096):
        os.write(2, b"x" * (1 << 20))


def nests_directories(p: Place) -> None:
    """Deeper than a recursion goes, and than a path is long."""
    for _ in range(5000):
        os.mkdir("d")
        os.chdir("d")
    os._exit(0)


def leaves_what_resists(p: Place) -> None:
    """Directories that nobody may enter, with links to the run: who mends modes to remove them must not follow."""
    os.mkdir("closed")
    for number, target in enumerate((p.secrets, p.run / "vault", p.run)):
        os.symlink(target, f"closed/link-{number}")
    os.umask(0o777)
    os.mkdir("closed/inner")
    os.open("closed/file", os.O_CREAT | os.O_WRONLY, 0o666)
    os.mkdir("none")
    os._exit(0)


def makes_empty_files(p: Place) -> None:
    for number in range(1 << 22):
        os.close(os.open(f"empty-{number}", os.O_CREAT | os.O_WRONLY))


def _pipes() -> list[int]:
    found = []
    for number in range(3, 64):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").startswith("pipe:"):
                found.append(number)
    return found


def _says(data: bytes) -> None:
    for number in _pipes():
        with suppress(OSError):
            os.write(number, data)


def _frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">IQ", len(header), len(body)) + header + body


def closes_the_pipe(p: Place) -> None:
    for number in _pipes():
        os.close(number)
    time.sleep(3600)


def claims_a_huge_frame(p: Place) -> None:
    _says(struct.pack(">IQ", 2, 1 << 62) + b"{}")
    time.sleep(3600)


def claims_a_frame_and_stops(p: Place) -> None:
    _says(struct.pack(">IQ", 1 << 20, 1 << 20))
    time.sleep(3600)


def sends_a_torrent(p: Place) -> None:
    frame = _frame(b'{"kind": "question", "fields": {"question": {"of": null, "samples": "t0"}}}')
    while True:
        _says(frame * 100)


def names_one_tensor_often(p: Place) -> None:
    import torch

    from fdaudit.storage.files import encode

    guess = '{"kind": "membership", "target": "client/0", "scores": "t0", "generated": "t0", "note": ""}'
    header = '{"kind": "guesses", "fields": {"guesses": [' + ",".join([guess] * 120) + "]}}"
    _says(_frame(header.encode(), encode({"t0": torch.zeros(1 << 20)})))
    time.sleep(3600)


def makes_a_call_of_another_architecture(p: Place) -> None:
    """By the numbers of x32, which a filter that looks at numbers only would let pass."""
    LIBC.syscall(0x40000000 + 90, bytes(p.run), 0o777)
    raise RuntimeError("the call was made")


ALONE: dict[str, tuple[Callable[[Place], None], str]] = {
    "leaves children": (leaves_children, "ended"),
    "sleeps": (sleeps, "overdue"),
    "holds the interpreter": (holds_the_interpreter, "overdue"),
    "forks for ever": (forks_for_ever, "processes or overdue"),
    "takes memory": (takes_memory, "memory"),
    "takes memory in children": (takes_memory_in_children, "memory"),
    "fills the disk": (fills_the_disk, "disk"),
    "nests directories": (nests_directories, "ended"),
    "leaves what resists": (leaves_what_resists, "ended"),
    "makes empty files": (makes_empty_files, "disk"),
    "fills its output": (fills_its_output, "disk"),
    "closes the pipe": (closes_the_pipe, "ended"),
    "claims a huge frame": (claims_a_huge_frame, "malformed"),
    "claims a frame and stops": (claims_a_frame_and_stops, "overdue"),
    "sends a torrent": (sends_a_torrent, "malformed"),
    "names one tensor often": (names_one_tensor_often, "any"),
    "makes a call of another architecture": (makes_a_call_of_another_architecture, "ended"),
}
"""What it does, and what becomes of its cell."""
