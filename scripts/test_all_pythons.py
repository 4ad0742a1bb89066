"""All tests on every Python that pyproject.toml names and this machine has: `make test-all-pythons`.

Looks for python3.X on PATH and among pyenv's versions. Each gets an environment of its own, .venv-3.X. With arguments,
they are pytest's, and only that is run. `--others`: not on the Python that runs this.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
_PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")
_SUMMARY = re.compile(r"^=*\s*(\d+ \w+, )*\d+ \w+ in [\d.]+s")


class Result(NamedTuple):
    """One line of the table."""

    version: str
    status: str
    counts: dict[str, int]
    took_s: float
    note: str

    def __str__(self) -> str:
        columns = [f"{self.counts.get(name, 0):>8}" for name in ("passed", "failed", "skipped")]
        return f"{self.version:<8}{self.status:<10}{''.join(columns)}{self.took_s:>7.0f} s  {self.note}"


def named_versions() -> list[str]:
    """The versions that the package says it works on."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    found = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in classifiers)
    return [each[1] for each in found if each]


def find(version: str) -> Path | None:
    """The first that really is this version: a shim of pyenv's may be there for one that is not."""
    for candidate in _candidates(version):
        try:
            done = subprocess.run([candidate, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False)
        except OSError:
            continue
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


def _candidates(version: str) -> Iterator[Path]:
    name = f"python{version}"
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which(name, path=folder)
        if found:
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/{name}"), reverse=True)


def prepare(version: str, python: Path) -> Path:
    """An environment with exeat and its development tools. Made once, and again when pyproject.toml has changed."""
    folder = ROOT / f".venv-{version}"
    inside, stamp = folder / "bin" / "python", folder / ".installed"
    if stamp.exists() and stamp.stat().st_mtime >= (ROOT / "pyproject.toml").stat().st_mtime:
        return inside
    print(f"installing exeat and its development tools into {folder.name} ...", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([inside, "-m", "pip", "install", *quiet, "--editable", ".[dev]"], cwd=ROOT, check=True)
    stamp.touch()
    return inside


def test(version: str, python: Path, arguments: list[str]) -> Result:
    began = time.monotonic()
    inside = prepare(version, python)
    environ, note = dict(os.environ), str(python)
    if not _is_for_everybody(inside):
        # In CI it is a failure if a test cannot be run. Those that become another user cannot be, with this Python.
        environ.pop("CI", None)
        note += " (closed to other users, so tests as another user are skipped)"
    argv = ["bash", "scripts/run-tests", str(inside), *arguments]
    counts: dict[str, int] = {}
    with subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True, errors="replace") as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            if _SUMMARY.match(line):
                for number, what in _COUNT.findall(line):
                    kind = "failed" if what.startswith("error") else what
                    counts[kind] = counts.get(kind, 0) + int(number)
    return Result(version, "FAILED" if child.returncode else "passed", counts, time.monotonic() - began, note)


def _is_for_everybody(python: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in python.resolve().parents)


def main(arguments: list[str]) -> int:
    own = "{}.{}".format(*sys.version_info[:2])
    versions = named_versions()
    if "--others" in arguments:
        arguments.remove("--others")
        versions.remove(own)
    results, missing = [], []
    for version in versions:
        python = find(version)
        if python is None:
            missing.append(version)
            continue
        print(f"\nPython {version}: {python}", flush=True)
        try:
            results.append(test(version, python, arguments))
        except subprocess.CalledProcessError as error:
            what = " ".join(map(str, error.cmd))
            results.append(Result(version, "FAILED", {}, 0, f"could not be set up: {what}"))
    print("\nPython  result      passed  failed skipped     time")
    for result in results:
        print(result)
    for version in missing:
        print(f"{version:<8}not found on PATH or among pyenv's versions, so not tested")
    failed = any(result.status != "passed" for result in results)
    return 1 if failed or (not results and "--others" not in sys.argv) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
