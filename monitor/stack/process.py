"""Child processes of a demo, a test or a benchmark: started, watched, and never left behind.

A child dies with us in whatever way we end: `stop()` asks it to (SIGTERM, then SIGKILL), an exit
handler kills what is left, and on Linux the kernel kills it should we be killed ourselves.
"""

from __future__ import annotations

import atexit
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, NamedTuple, Self

from monitor.errors import MissingProgram, MonitorError

MISSING_BINARY_EXIT_CODE: Final = 3
"""What a command exits with when a program it needs is not on the machine."""

_FREE_PORT_RANGE: Final = range(20_000, 30_000)
"""Below Linux's ephemeral ports (32768 and up): no outgoing connection can take one between our look
and the service's bind, and a random choice among 10,000 keeps parallel runs apart."""

_POLL_SECONDS: Final = 0.05
"""Between two looks at a starting service: short beside the 0.2 to 5 s that the services take."""

_TAIL_LINES: Final = 40
"""Of a log, in an error: a Java stack trace with its cause fits."""


class StackError(MonitorError):
    """A service of the stack could not do what was asked; the message says which, and what to do."""


class MissingBinaryError(StackError, MissingProgram):
    """A program that the stack runs is not on this machine."""

    exit_code: ClassVar[int] = MISSING_BINARY_EXIT_CODE


class _Binary(NamedTuple):
    names: tuple[str, ...]
    """Under which it is looked for on PATH, first found first taken."""
    how: str
    """To get it."""


_BINARIES: Final[Mapping[str, _Binary]] = {
    "java": _Binary(
        ("java",),
        "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)",
    ),
    "prometheus": _Binary(
        ("prometheus",),
        "install it (Debian: apt-get install prometheus) or run `make setup` as root",
    ),
    "promtool": _Binary(
        ("promtool",),
        "it comes with Prometheus (Debian: apt-get install prometheus)",
    ),
    # Debian renames the server, since another package owned the name.
    "alertmanager": _Binary(
        ("prometheus-alertmanager", "alertmanager"),
        "install it (Debian: apt-get install prometheus-alertmanager) or run `make setup` as root",
    ),
    "amtool": _Binary(
        ("amtool",),
        "it comes with Alertmanager (Debian: apt-get install prometheus-alertmanager)",
    ),
}


def find_binary(name: str) -> Path:
    """The program's path, or a `MissingBinaryError` that says how to get it."""
    binary = _BINARIES.get(name)
    if binary is None:
        raise ValueError(f"unknown program {name!r}: known are {', '.join(sorted(_BINARIES))}")
    for candidate in binary.names:
        found = shutil.which(candidate)
        if found is not None:
            return Path(found)
    looked_for = " or ".join(f"`{candidate}`" for candidate in binary.names)
    raise MissingBinaryError(f"{name} is not on PATH (looked for {looked_for}): {binary.how}")


def free_ports(count: int) -> tuple[int, ...]:
    """That many different TCP ports on which nothing listens on the loopback address now."""
    chosen: list[int] = []
    for port in random.SystemRandom().sample(_FREE_PORT_RANGE, k=len(_FREE_PORT_RANGE)):
        if len(chosen) == count:
            return tuple(chosen)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As the services do: a port whose old connections still linger (TIME_WAIT) is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        chosen.append(port)
    raise StackError(
        f"no {count} free TCP ports between {_FREE_PORT_RANGE.start} and {_FREE_PORT_RANGE.stop - 1}"
        " on 127.0.0.1: end what listens there"
    )


# Runs between fork and the service, in a Python of its own rather than as `preexec_fn`: code between
# fork and exec of a process with threads may deadlock. `exec` keeps the pid and the death signal.
_DIE_WITH_PARENT: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
    sys.exit(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent ended before its child was set up")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class _Spawner:
    """Starts every child from one thread that lives as long as this process.

    The kernel sends the death signal when the *thread* that started a child ends. A child started from
    a short-lived one (`asyncio.to_thread`, a test's own) would be killed in the middle of its work.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[
            tuple[Callable[[], subprocess.Popen[bytes]], Future[subprocess.Popen[bytes]]]
        ] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def spawn(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stack-spawner", daemon=True)
                self._thread.start()
        result: Future[subprocess.Popen[bytes]] = Future()
        self._jobs.put((start, result))
        return result.result()

    def _run(self) -> None:
        while True:
            start, result = self._jobs.get()
            try:
                result.set_result(start())
            except BaseException as error:  # noqa: BLE001 - handed to the caller of spawn()
                result.set_exception(error)


_spawner: Final = _Spawner()
_running: Final[set[ChildProcess]] = set()


@atexit.register
def _kill_what_is_left() -> None:
    for child in tuple(_running):
        child.kill()


class ChildProcess:
    """One process with its log file. It may be started again after it ended; the log then goes on."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log_path: Path,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env` is the whole environment; None hands on our own."""
        self.name = name
        self.command: tuple[str, ...] = tuple(str(part) for part in command)
        self.log_path = log_path
        self._cwd = cwd
        self._env = None if env is None else dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """Of the last start, also after its end."""
        return self._started().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._started().poll()

    def start(self) -> None:
        if self.running:
            raise StackError(f"{self.name} is already running (pid {self.pid})")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = self.command
        if sys.platform == "linux":
            launcher = (sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()))
            command = (*launcher, *command)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = _spawner.spawn(
                lambda: subprocess.Popen(
                    command,
                    cwd=self._cwd,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A Ctrl-C on the terminal reaches us alone, and we stop the children in order.
                    start_new_session=True,
                )
            )
        _running.add(self)

    def wait_until(self, ready: Callable[[], bool], *, timeout: float) -> None:
        """Until `ready()`; if the process ends first or the time is up, it is killed and its log's end shown."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                problem = f"ended with exit code {self.returncode} before it was ready"
            elif time.monotonic() > deadline:
                problem = f"was not ready within {timeout:g} s"
            else:
                time.sleep(_POLL_SECONDS)
                continue
            self.kill()
            raise StackError(
                f"{self.name} {problem}; {self.log_path} ends with:\n{self.log_tail()}"
            )

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code once it has ended; `subprocess.TimeoutExpired` if it does not in time."""
        code = self._started().wait(timeout)
        _running.discard(self)
        return code

    def send(self, signum: signal.Signals) -> None:
        self._started().send_signal(signum)

    def pause(self) -> None:
        """As a machine does that stalls: the process keeps its connections and does nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def stop(self, *, grace: float = 15.0) -> int | None:
        """Asks it to end, kills it if it has not after `grace` seconds. None: it was never started."""
        if self._process is None:
            return None
        if self.running:
            self.send(signal.SIGTERM)
            self.resume()  # a paused process takes no SIGTERM
            try:
                self.wait(grace)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.wait()

    def kill(self) -> None:
        """As kill -9 does: no time to clean up."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def log(self) -> str:
        """What it has written since its last start."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode("utf-8", errors="replace")

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        return "\n".join(self.log().splitlines()[-lines:]) or "(nothing)"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise StackError(f"{self.name} has not been started: call start() first")
        return self._process


class Service(ABC):
    """A server with a data folder of its own: the folder given, or a temporary one that `close()` removes.

    `stop()` keeps the data, so that `start()` goes on with it on the same ports.
    """

    name: ClassVar[str]
    start_timeout: ClassVar[float]
    """Seconds; about ten times what it takes on an idle machine, since test machines are not idle."""

    def __init__(self, data_dir: Path | None) -> None:
        self._own_folder: tempfile.TemporaryDirectory[str] | None = None
        if data_dir is None:
            self._own_folder = tempfile.TemporaryDirectory(prefix=f"agent-monitor-{self.name}-")
            data_dir = Path(self._own_folder.name)
        self.data_dir = data_dir.resolve()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.log_path = self.data_dir / f"{self.name}.log"
        self._child: ChildProcess | None = None

    @abstractmethod
    def _prepare(self) -> Sequence[str | Path]:
        """Writes what the server reads, and returns the command that starts it."""

    def _environment(self) -> Mapping[str, str] | None:
        """The server's whole environment; None hands on our own."""
        return None

    def _new_child(self) -> ChildProcess:
        return ChildProcess(
            self.name,
            self._prepare(),
            log_path=self.log_path,
            cwd=self.data_dir,
            env=self._environment(),
        )

    @abstractmethod
    def _is_ready(self, child: ChildProcess) -> bool:
        """Whether it answers what it is asked."""

    @property
    def pid(self) -> int:
        return self._running_child().pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def start(self) -> Self:
        """Returns once the server answers."""
        if self.running:
            raise StackError(f"{self.name} is already running (pid {self.pid})")
        self._child = child = self._new_child()
        child.start()
        child.wait_until(lambda: self._is_ready(child), timeout=self.start_timeout)
        return self

    def stop(self) -> None:
        if self._child is not None:
            self._child.stop()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def pause(self) -> None:
        self._running_child().pause()

    def resume(self) -> None:
        self._running_child().resume()

    def close(self) -> None:
        """Stops it and removes its folder if that is temporary."""
        self.stop()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _running_child(self) -> ChildProcess:
        if self._child is None:
            raise StackError(f"{self.name} has not been started: call start() first")
        return self._child
