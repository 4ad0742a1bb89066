"""`python -m bench.files`: what the copy-on-write view costs, in work that is mostly files.

Each job runs outside, in a project inside (real), and in a layer inside (the same folder, from another project), in
turns. What is told is CPU seconds and time of the job itself, the best of its rounds, and both as a part of outside.
The aims: at most 10 % more in the project, 25 % in a layer.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.process import ROOT

_MEASURE = """
import json, os, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, time.perf_counter() - began, done.returncode]))
"""
_PLACES = ("outside", "project", "layer")
_MOST = {"project": 1.10, "layer": 1.25}


@dataclass(frozen=True, slots=True)
class Job:
    """`prepare` makes a folder ready for one run, and `argv` is run in it."""

    name: str
    argv: list[str]
    prepare: Callable[[Path], None]


def _make_repository(folder: Path, files: int) -> None:
    for number in range(files):
        path = folder / f"d{number // 500}" / f"e{number // 50 % 10}" / f"file{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content {number}\n")
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@example.com", "-c", "gc.auto=0"]
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)


def _make_npm_project(folder: Path, packages: int, files: int) -> None:
    """Packages as archives in the project: what npm does with them is the same as with a registry's."""
    needed, locked = {}, {}
    for number in range(packages):
        name = f"bench-package-{number}"
        source = folder / "sources" / name
        source.mkdir(parents=True)
        (source / "package.json").write_text(json.dumps({"name": name, "version": "1.0.0"}))
        for each in range(files):
            (source / f"module{each}.js").write_text(f"module.exports = {each};\n" * 20)
        with tarfile.open(folder / f"{name}.tgz", "w:gz") as archive:
            archive.add(source, "package")
        needed[name] = f"file:{name}.tgz"
        locked[f"node_modules/{name}"] = {"version": "1.0.0", "resolved": f"file:{name}.tgz"}
    shutil.rmtree(folder / "sources")
    about = {"name": "bench", "version": "1.0.0", "dependencies": needed}
    (folder / "package.json").write_text(json.dumps(about))
    lock = {"name": "bench", "version": "1.0.0", "lockfileVersion": 3, "packages": {"": about, **locked}}
    (folder / "package-lock.json").write_text(json.dumps(lock))


def _make_wheel(folder: Path, files: int) -> None:
    about = "Metadata-Version: 2.1\nName: benchwheel\nVersion: 1.0\n"
    kind = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    names = [f"benchwheel/part{number}.py" for number in range(files)]
    with zipfile.ZipFile(folder / "benchwheel-1.0-py3-none-any.whl", "w") as wheel:
        for name in names:
            wheel.writestr(name, "value = 1\n" * 40)
        wheel.writestr("benchwheel-1.0.dist-info/METADATA", about)
        wheel.writestr("benchwheel-1.0.dist-info/WHEEL", kind)
        wheel.writestr("benchwheel-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in names))


def _make_environment(folder: Path) -> None:
    _without("environment")(folder)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)


def _make_c_project(folder: Path, files: int) -> None:
    for number in range(files):
        body = "".join(f"int f{number}_{each}(int x) {{ return x * {each} + {number}; }}\n" for each in range(200))
        (folder / f"part{number}.c").write_text("#include <stdio.h>\n#include <stdlib.h>\n" + body)
    parts = " ".join(f"part{number}.o" for number in range(files))
    (folder / "Makefile").write_text(f"all: libbench.a\nlibbench.a: {parts}\n\tar rcs $@ $^\n")


def _without(*names: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for name in names:
            for path in folder.glob(name):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def _jobs(scale: float) -> list[tuple[Job, Callable[[Path], None]]]:
    npm = ["npm", "ci", "--offline", "--no-audit", "--no-fund", "--cache", "npm-cache"]
    # Into an environment: `--target` would unpack to /tmp first, which inside is another file system.
    pip = ["environment/bin/python", "-m", "pip", "install", "-q", "--no-index", "--find-links", "."]
    return [
        (
            Job("git status, 50,000 files", ["git", "status", "--porcelain"], lambda folder: None),
            lambda folder: _make_repository(folder, int(50_000 * scale)),
        ),
        (
            Job("npm ci, 60 packages of 50 files", npm, _without("node_modules", "npm-cache")),
            lambda folder: _make_npm_project(folder, max(1, int(60 * scale)), 50),
        ),
        (
            Job("pip install, 3,000 files", [*pip, "benchwheel"], _make_environment),
            lambda folder: _make_wheel(folder, int(3_000 * scale)),
        ),
        (
            Job("make, 120 C files", ["make", "-s", "-j2"], _without("*.o", "*.a")),
            lambda folder: _make_c_project(folder, max(1, int(120 * scale))),
        ),
    ]


def _run(job: Job, folder: Path, elsewhere: Path, place: str) -> tuple[float, float]:
    job.prepare(folder)
    os.sync()  # what was removed or made just now is not this job's work
    inner = [sys.executable, "-c", _MEASURE, *job.argv]
    if place == "outside":
        argv, cwd = inner, folder
    else:
        script = 'cd "$0" && exec "$@"'
        argv = [sys.executable, "-m", "exeat", "run", "--quiet", "--", "sh", "-c", script, str(folder), *inner]
        cwd = folder if place == "project" else elsewhere
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{job.name}, {place}: {done.stderr or done.stdout}")
    cpu_s, time_s, status = json.loads(done.stdout.splitlines()[-1])
    if status:
        sys.exit(f"{job.name}, {place}: exit status {status}\n{done.stderr}")
    return cpu_s, time_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.files", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", default="", help="only those whose name has this in it")
    parser.add_argument("--scale", type=float, default=1.0, help="a part of the files, for a quick look")
    options = parser.parse_args()
    print("| job | outside: CPU, time | project | layer | |")
    print("|---|---|---|---|---|")
    for job, make in _jobs(options.scale):
        if options.job not in job.name:
            continue
        with TemporaryDirectory(prefix="exeat-bench-", dir=Path.home()) as name:
            folder, elsewhere = Path(name) / "folder", Path(name) / "elsewhere"
            folder.mkdir()
            elsewhere.mkdir()
            make(folder)
            found: dict[str, list[tuple[float, float]]] = {place: [] for place in _PLACES}
            for _ in range(options.rounds):
                for place in _PLACES:
                    found[place].append(_run(job, folder, elsewhere, place))
        print(_row(job.name, found), flush=True)
    return 0


def _row(name: str, found: dict[str, list[tuple[float, float]]]) -> str:
    best = {place: (min(each[0] for each in runs), min(each[1] for each in runs)) for place, runs in found.items()}
    cpu_s, time_s = best["outside"]
    cells, missed = [f"{cpu_s:.2f} s, {time_s:.2f} s"], []
    for place, most in _MOST.items():
        by_cpu, by_time = best[place][0] / cpu_s, best[place][1] / time_s
        cells.append(f"{by_cpu:.2f} x, {by_time:.2f} x")
        if by_cpu > most:
            missed.append(place)
    return f"| {name} | {' | '.join(cells)} | {'missed: ' + ', '.join(missed) if missed else 'met'} |"


if __name__ == "__main__":
    sys.exit(main())
