"""Turns a base image's files into a sandbox's: installs packages, adds the user, removes unwanted programs.

It runs as root in the first stage of a build. The second stage copies all that is left into an empty image, so what is
taken away here is in none of its layers. Python 3.8 or later, nothing but the standard library.
"""

from __future__ import annotations

import compileall
import fnmatch
import glob
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig

HERE = "/exeat-build"
USER = "sandbox"
FIRST_ID = 10001

# Programs that fetch, compile or install, wherever they are. Python can do the same, of course, and has no more rights;
# but what an attacker's script expects to find is not there.
PROGRAMS = {
    "curl", "wget", "wget2", "aria2c", "axel", "lynx", "links", "w3m", "nc", "ncat", "netcat", "socat", "telnet",
    "ftp", "lftp", "tftp", "sftp", "scp", "ssh", "slogin", "sshd", "rsync", "rcp", "rsh", "busybox", "toybox", "cc",
    "c89", "c99", "c++", "cpp", "gcc", "g++", "clang", "clang++", "tcc", "rustc", "cargo", "go", "gofmt", "as",
    "ld", "make", "gmake", "cmake", "ninja", "git", "svn", "hg", "bzr", "apt", "aptitude", "dpkg", "apk", "yum",
    "dnf", "microdnf", "rpm", "zypper", "pacman", "pip", "easy_install", "uv", "uvx", "conda", "mamba",
}  # fmt: skip
PATTERNS = (
    "nc.*", "telnet.*", "ssh-*", "busybox.*", "c89-*", "c99-*", "cpp-*", "gcc-*", "g++-*", "clang-*", "clang++-*",
    "*-gcc", "*-gcc-*", "*-g++", "*-g++-*", "*-cpp", "*-cpp-*", "*-as", "*-ld", "ld.bfd", "ld.gold", "ld.lld",
    "*-ld.bfd", "*-ld.gold", "make-first-existing-target", "git-*", "apt-*", "dpkg-*", "yum-*", "dnf-*", "rpm2*",
    "pip[0-9]*", "easy_install-*",
)  # fmt: skip
# Whole folders: what belongs to these programs, caches, and texts that no program needs. The list of installed packages
# (/var/lib/dpkg/status, /lib/apk/db) stays, for those who look for known holes in images.
FOLDERS = (
    "/usr/lib/apt", "/usr/libexec/apt", "/etc/apt", "/var/lib/apt", "/usr/share/apt", "/usr/lib/dpkg",
    "/usr/libexec/dpkg", "/etc/dpkg", "/usr/share/dpkg", "/usr/share/perl5/Dpkg", "/var/lib/dpkg/info",
    "/var/lib/dpkg/triggers", "/var/lib/dpkg/updates", "/var/lib/dpkg/alternatives", "/var/lib/dpkg/parts",
    "/usr/lib/gcc", "/usr/libexec/gcc", "/usr/share/gcc", "/usr/lib/git-core", "/usr/libexec/git-core",
    "/usr/share/git-core", "/usr/lib/openssh", "/usr/libexec/openssh", "/etc/ssh", "/usr/share/python-wheels",
    "/usr/share/bash-completion", "/usr/share/doc", "/usr/share/man", "/usr/share/info", "/usr/share/lintian",
    "/usr/share/locale", "/usr/include", "/etc/apk/cache", "/var/lib/dnf", "/var/lib/yum",
)  # fmt: skip
EMPTY_FOLDERS = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/var/cache": 0o755, "/var/log": 0o755, "/root": 0o700}
NOT_OURS = ("/proc", "/sys", "/dev")  # the engine's, while it builds


def main() -> None:
    with open(f"{HERE}/settings.json") as file:
        settings = json.load(file)
    check_python(os.path.realpath(sys.executable))
    if settings["requirements"]:
        install(settings)
    take_away("", installers())
    compile_modules(sysconfig.get_path("stdlib"))
    add_user("")
    shutil.rmtree(HERE)


def check_python(program: str) -> None:
    """The one that runs here is the one that tools will run with."""
    for folder in EMPTY_FOLDERS:
        if program.startswith(f"{folder}/"):
            sys.exit(f"exeat: the base image has its Python in {folder}, where the user {USER} cannot use it")


def install(settings: dict) -> None:  # type: ignore[type-arg]  # Python 3.8
    """With the pip of the base image, or with the one that was sent along."""
    pip = [sys.executable, "-I", "-m", "pip"]
    if subprocess.run([*pip, "--version"], capture_output=True, check=False).returncode:
        if not os.path.exists(f"{HERE}/pip.whl"):
            sys.exit("exeat: the base image has no pip, and neither has the Python that exeat runs with")
        pip = [sys.executable, f"{HERE}/pip.whl/pip"]
    with open(f"{HERE}/requirements.txt", "w") as file:
        file.write("\n".join(settings["requirements"]) + "\n")
    command = [*pip, "install", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    if settings["has_hashes"]:
        command.append("--require-hashes")
    fixed = {"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_CONFIG_FILE": os.devnull}
    variables = {**os.environ, **settings["environment"], **fixed}
    done = subprocess.run([*command, "-r", f"{HERE}/requirements.txt"], env=variables, check=False)
    if done.returncode:
        sys.exit(f"exeat: the packages could not be installed (pip ended with {done.returncode})")


def installers() -> list[str]:
    """pip, and the copies of it that Python carries: nothing is installed in a sandbox."""
    places = {sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib")} | {*sys.path}
    names = ("pip", "pip-*", "ensurepip")
    return [path for place in places if place for name in names for path in glob.glob(f"{glob.escape(place)}/{name}")]


def compile_modules(folder: str) -> None:
    """Small images come without, and a sandbox cannot keep what it compiles: each call would do it again."""
    others = re.compile(r"/(?:site-packages|dist-packages|test|tests|idlelib|lib2to3|turtledemo)/")
    compileall.compile_dir(folder, quiet=2, rx=others)


def take_away(root: str, more: list[str]) -> None:
    """`root` is "" for the image; a test has a folder."""
    for folder in (*(f"{root}{each}" for each in FOLDERS), *more):
        remove(folder)
    for folder, mode in EMPTY_FOLDERS.items():
        empty(f"{root}{folder}", mode)
    for folder, folders, files in os.walk(root or "/"):
        inside = folder[len(root) :].rstrip("/")
        folders[:] = [each for each in folders if f"{inside}/{each}" not in NOT_OURS]
        for name in files:
            if is_unwanted(os.path.join(folder, name)):
                os.unlink(os.path.join(folder, name))
            else:
                take_privileges(os.path.join(folder, name))
        for name in folders:
            take_privileges(os.path.join(folder, name))


def is_unwanted(path: str) -> bool:
    name = os.path.basename(path)
    if name not in PROGRAMS and not any(fnmatch.fnmatchcase(name, each) for each in PATTERNS):
        return False
    mode = os.lstat(path).st_mode
    return stat.S_ISLNK(mode) or (stat.S_ISREG(mode) and bool(mode & 0o111))


def take_privileges(path: str) -> None:
    """Running a program gives no more rights."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return
    if mode & (stat.S_ISUID | stat.S_ISGID):
        os.chmod(path, stat.S_IMODE(mode) & ~(stat.S_ISUID | stat.S_ISGID))
    if stat.S_ISREG(mode) and mode & 0o111 and "security.capability" in os.listxattr(path):
        os.removexattr(path, "security.capability")


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def empty(folder: str, mode: int) -> None:
    """It stays itself: an engine may have mounted something there."""
    if os.path.islink(folder):
        os.unlink(folder)
    os.makedirs(folder, exist_ok=True)
    for name in os.listdir(folder):
        remove(os.path.join(folder, name))
    os.chmod(folder, mode)


def add_user(root: str) -> None:
    """By hand: not every image has a program for it."""
    os.makedirs(f"{root}/etc", exist_ok=True)
    users, groups = lines_without(f"{root}/etc/passwd", USER), lines_without(f"{root}/etc/group", USER)
    taken = {line.split(":")[2] for line in (*users, *groups) if line.count(":") > 2}
    own = next(each for each in range(FIRST_ID, 1 << 16) if str(each) not in taken)
    write(f"{root}/etc/passwd", [*users, f"{USER}:x:{own}:{own}::/home/{USER}:/usr/sbin/nologin"])
    write(f"{root}/etc/group", [*groups, f"{USER}:x:{own}:"])
    home = f"{root}/home/{USER}"
    remove(home)
    os.makedirs(home)
    os.chmod(home, 0o700)
    os.chown(home, own, own)


def lines_without(path: str, name: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return [line for line in file.read().splitlines() if not line.startswith(f"{name}:")]
    except FileNotFoundError:
        return []


def write(path: str, lines: list[str]) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
