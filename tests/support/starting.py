"""The same start for every session of tests, whoever starts it and how.

Signals that are ignored (`nohup`, a job in the background of a script), the mask, umask, limits and variables are
inherited by every program that a test starts. So they are set here, once, before anything else is loaded.
"""

from __future__ import annotations

import atexit
import locale
import os
import resource
import shutil
import signal
import tempfile
import time
from pathlib import Path

# Loaded first by every Python that a test starts: it notes what is imported when nothing may be any more.
_AT_START = Path(__file__).with_name("at_start")
LATE_IMPORTS = "TESTS_LATE_IMPORTS"

_KEPT = ("PATH", "CI", "LD_LIBRARY_PATH", "PYTHONHASHSEED", LATE_IMPORTS)
_KEPT_KINDS = ("EXEAT_TEST_", "HYPOTHESIS_", "PYTEST_")
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
_DESCRIPTORS = 4_096

# For downloads and compilers of test programs: the machine's own settings and caches are in it.
CALLERS_ENVIRONMENT = dict(os.environ)


def start_alike() -> None:
    """Leave nothing of what the caller of the tests has set that a test could notice."""
    _reset_signals()
    os.umask(0o022)
    _reset_limits()
    _keep_descriptors_to_ourselves()
    _reset_variables()
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    tempfile.tempdir = None  # found again, without TMPDIR


def _reset_signals() -> None:
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN and number not in _PYTHON_IGNORES:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _reset_limits() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(_DESCRIPTORS, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _keep_descriptors_to_ourselves() -> None:
    """Of make's job server, of a CI runner: no test opened these, so no child of a test is to have them."""
    for each in Path("/proc/self/fd").iterdir():
        if int(each.name) > 2:
            try:
                os.set_inheritable(int(each.name), False)
            except OSError:
                continue  # the one that listed the folder


def _reset_variables() -> None:
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_KINDS)}
    os.environ.clear()
    os.environ.update({"PATH": os.defpath, "LANG": "C.UTF-8", "TERM": "xterm", "TZ": "UTC"} | kept)
    time.tzset()
    home = tempfile.mkdtemp(prefix="exeat-tests-home-", dir="/tmp")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    Path(home).chmod(0o755)  # also for those that a test becomes
    os.environ |= {"HOME": home, "PYTHONPATH": str(_AT_START)}
    if LATE_IMPORTS not in os.environ:
        os.environ[LATE_IMPORTS] = f"{home}/late-imports"
    late = Path(os.environ[LATE_IMPORTS])
    late.touch()
    late.chmod(0o666)


def take_late_imports() -> str:
    """What was imported after sealing since the last call, in this session's programs: names, and from where."""
    late = Path(os.environ[LATE_IMPORTS])
    found = late.read_text()
    if found:
        os.truncate(late, 0)
    return found
