"""Where the peers come from: Debian packages, PyPI and npm, the last two kept inside bench/.work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.process import WORK, BenchError

SEARCH_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"))


def say(line: str) -> None:
    """Progress goes to stderr: standard output stays free for the table."""
    print(line, file=sys.stderr, flush=True)


def _run(argv: list[str], what: str, env: dict[str, str] | None = None) -> None:
    say(f"  installing {what}")
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **(env or {})}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchError(f"could not install {what}: {type(error).__name__}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise BenchError(f"could not install {what}: {lines[-1][:200]}")


def _install_debian_package(package: str) -> None:
    """Only for root, and only on Debian; whoever asked looks again."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        apt = {"DEBIAN_FRONTEND": "noninteractive"}
        _run(["apt-get", "install", "-y", "--no-install-recommends", package], package, apt)


def need_program(program: str, package: str) -> str:
    """Path of a system program; root gets its Debian package installed, others are told its name."""
    found = shutil.which(program, path=SEARCH_PATH)
    if found is None:
        _install_debian_package(package)
        found = shutil.which(program, path=SEARCH_PATH)
    if found is None:
        say(f"  missing: apt-get install {package}")
        raise BenchError(f"{program} is not installed (Debian package {package})")
    return found


def want_header(header: str, package: str) -> None:
    """A C header for programs built here. It may be elsewhere on other systems: the compiler has the last word."""
    if not Path("/usr/include", header).exists():
        _install_debian_package(package)


def need_python_package(package: str, program: str) -> Path:
    """A PyPI program in a virtual environment of its own, so that no peer's dependencies meet ours."""
    venv = WORK / f"venv-{package}"
    path = venv / "bin" / program
    if not path.exists():
        _run([sys.executable, "-m", "venv", str(venv)], f"an environment for {package}")
        _run([str(venv / "bin" / "pip"), "install", "--quiet", package], package)
    return path


def need_npm_package(package: str) -> Path:
    """Directory of an npm package, installed without running its scripts."""
    home = WORK / "npm"
    path = home / "node_modules" / package
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise BenchError("Node.js and npm are not installed")
        home.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(home)]
        _run([*command, package], package)
    return path
