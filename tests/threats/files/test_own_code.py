"""What exeat is made of, and what a run is told to go by, must be the same for the next run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exeat.trust.authority import Authority
from tests.support.runs.environment import Environment
from tests.support.runs.running import (
    ANYWHERE,
    AS_ROOT,
    BY_USER,
    NOBODY,
    TIMEOUT_S,
    as_user,
    environment,
    exeat,
    folder_of,
    python,
)

pytestmark = pytest.mark.threat("T-L9")

# Tries everything that its arguments say, as far as it gets, and says what was done.
TRY = """
import os, sys
def plant(path):
    with open(path, "a") as file:
        file.write("\\nplanted = 1\\n")
def swap(path):
    os.rename(path, path + "-away")
    os.symlink(path + "-away", path) if os.path.isdir(path + "-away") else plant(path)
def replace(path):
    plant(path + "-new")
    os.replace(path + "-new", path)
def remove(path):
    os.unlink(path)
def shorten(path):
    os.truncate(path, 0)
for each in sys.argv[1:]:
    how, path = each.split("=", 1)
    try:
        globals()[how](path)
        print(each)
    except OSError:
        pass
"""


@contextmanager
def environment_of(uid: int | None) -> Iterator[Environment]:
    with folder_of(uid) as folder:
        yield Environment(folder, uid)


@BY_USER
def test_the_environment_that_exeat_runs_from_cannot_be_changed(uid: int | None) -> None:
    with environment_of(uid) as there:
        inside = there.run("--quiet", command=python(TRY, *there.tries()))
        assert (inside.status, inside.stdout, inside.stderr) == (0, "", "")
        assert there.run(command=["true"]).status == 0
        outside = exeat(argv=[*as_user(uid), *python(TRY, *there.tries())], cwd=ANYWHERE)
        assert outside.stdout.split("\n")[:-1] == there.tries()


@BY_USER
def test_the_project_around_it_can_be_changed(uid: int | None) -> None:
    """And so can other environments, with the same Python."""
    with environment_of(uid) as there:
        script = "echo x > file && mkdir src && mv src source && ln file second && rm file && touch ../other && echo ok"
        assert there.run(command=["sh", "-c", script]).stdout == "ok\n"


@BY_USER
def test_the_link_by_which_it_is_started_cannot_be_turned(uid: int | None) -> None:
    """As pipx and uv make it: in a folder of programs, to a script of the environment."""
    with environment_of(uid) as there:
        script, link = there.root / "bin" / "exeat", there.folder / "programs" / "exeat"
        script.write_text(f"#!{there.root}/bin/python\nimport sys\nfrom exeat.cli.main import main\nsys.exit(main())\n")
        script.chmod(0o755)
        link.parent.mkdir()
        link.symlink_to(script)
        if uid is not None:
            subprocess.run(["chown", "-hR", f"{uid}:{uid}", str(there.folder)], check=True)
        tries = [f"replace={link}", f"swap={link.parent}"]
        argv = [*as_user(uid), str(link), "run", "--", *python(TRY, *tries, f"plant={link.parent}/other")]
        done = exeat(argv=argv, cwd=there.folder)
        assert (done.status, done.stdout, done.stderr) == (0, f"plant={link.parent}/other\n", "")
        assert exeat(argv=[*as_user(uid), *python(TRY, *tries)]).stdout.split() == tries


def test_a_source_tree_is_read_only_without_the_project_around_it() -> None:
    """As with `pip install --editable`."""
    with folder_of(None) as folder:
        there = Environment(folder, None)
        source = there.folder / "src"
        source.mkdir()
        (there.packages / "exeat").rename(source / "exeat")
        (there.packages / "source.pth").write_text(f"{source}\n")
        tries = [f"plant={source}/exeat/cli/main.py", f"plant={source}/sitecustomize.py", f"swap={source}"]
        inside = there.run(command=python(TRY, *tries, f"plant={there.folder}/README"))
        assert inside.stdout == f"plant={there.folder}/README\n"
        outside = exeat(argv=python(TRY, *tries))
        assert outside.stdout.split() == tries


@BY_USER
def test_second_names_of_its_files_are_told(uid: int | None) -> None:
    """Nothing is known of them but that they are there."""
    with environment_of(uid) as there:
        (there.folder / "cache").hardlink_to(there.packages / "exeat" / "__init__.py")
        assert "have second names" in there.run(command=["true"]).stderr
        (there.folder / "cache").unlink()
        assert there.run(command=["true"]).stderr == ""


def test_an_interpreter_of_the_users_own_cannot_be_changed() -> None:
    """As pyenv and uv install it. What is installed for it is no business of an environment's."""
    if sys.base_prefix in ("/usr", "/usr/local") or sys.prefix == sys.base_prefix:
        pytest.skip("this is the system's Python, or no environment")
    standard = Path(os.__file__).parent
    paths = [str(standard), str(standard / "os.py"), os.path.realpath(sys.executable), str(standard / "site-packages")]
    look = python("import os, sys\nfor path in sys.argv[1:]: print(os.access(path, os.W_OK))", *paths)
    assert exeat(argv=look).stdout.split() == ["True"] * 4
    done = exeat("--write", sys.base_prefix, command=look, cwd=ANYWHERE)
    assert done.stdout.split() == ["False"] * 3 + ["True"], done.stderr


def test_nothing_can_be_added_to_an_interpreter_of_the_users_own() -> None:
    """It looks for `lib/pythonXY.zip` before its own modules, and for settings next to the program."""
    if sys.base_prefix in ("/usr", "/usr/local") or sys.prefix == sys.base_prefix:
        pytest.skip("this is the system's Python, or no environment")
    folders = [f"{sys.base_prefix}/lib", f"{sys.base_prefix}/bin"]
    look = python("import os, sys\nfor path in sys.argv[1:]: print(os.access(path, os.W_OK))", *folders)
    assert exeat(argv=look).stdout.split() == ["True"] * 2
    assert exeat("--write", sys.base_prefix, command=look, cwd=ANYWHERE).stdout.split() == ["False"] * 2


def test_no_link_on_the_way_to_the_interpreter_can_be_turned() -> None:
    """As uv makes it: the environment's `python` leads through a link to the newest version."""
    with environment_of(None) as there:
        current = there.folder / "pythons" / "current"
        current.parent.mkdir()
        real = Path(sys.executable).resolve()
        current.symlink_to(real.parent)
        program = there.root / "bin" / "python"
        program.unlink()
        program.symlink_to(current / real.name)
        tries = [f"replace={current}", f"swap={current.parent}"]
        inside = there.run(command=python(TRY, *tries, f"plant={current.parent}/other"))
        assert (inside.status, inside.stdout) == (0, f"plant={current.parent}/other\n")
        assert exeat(argv=python(TRY, *tries)).stdout.split() == tries


def test_a_users_own_packages_cannot_be_changed_if_they_are_loaded() -> None:
    """As by the system's Python, outside of an environment. What is in such an environment loads them as well."""
    with environment_of(None) as there:
        settings = there.root / "pyvenv.cfg"
        alone = settings.read_text()
        env = environment(PYTHONUSERBASE=str(there.folder / "base"))
        ask = [str(there.root / "bin" / "python"), "-c", "import site; print(site.getusersitepackages())"]
        packages = Path(subprocess.run(ask, env=env, capture_output=True, text=True, check=True).stdout.strip())
        packages.mkdir(parents=True)
        tries = [f"plant={packages}/usercustomize.py", f"swap={packages}"]
        settings.write_text(alone.replace("packages = false", "packages = true"))
        assert there.run(command=python(TRY, *tries), env=env).stdout == ""
        settings.write_text(alone)
        assert there.run(command=python(TRY, *tries), env=env).stdout.split() == tries


@AS_ROOT
def test_an_environment_of_roots_in_a_folder_of_the_users_cannot_be_swapped() -> None:
    """Two levels up is the user's folder: what is in it can be renamed, whoever owns that."""
    with folder_of(NOBODY) as folder:
        there = Environment(folder, None)
        there.uid = NOBODY
        tries = [f"swap={there.folder}"]
        inside = there.run("--quiet", command=python(TRY, *tries, f"plant={folder}/other"), cwd=folder)
        assert (inside.status, inside.stdout) == (0, f"plant={folder}/other\n")
        assert exeat(argv=[*as_user(NOBODY), *python(TRY, *tries)]).stdout.split() == tries


@BY_USER
def test_who_wants_to_install_there_is_told_how(uid: int | None) -> None:
    with environment_of(uid) as there:
        active = environment(VIRTUAL_ENV=str(there.root))
        assert "is read-only inside" in there.run(command=["false"], env=active).stderr
        (there.root / "bin" / "pip").symlink_to("/bin/false")
        assert "pipx" in there.run(command=[str(there.root / "bin" / "pip")]).stderr
        assert there.run("--quiet", command=["false"], env=active).stderr == ""
        assert there.run(command=["true"], env=active).stderr == ""
        assert there.run(command=["false"]).stderr == ""


@BY_USER
@pytest.mark.parametrize("option", ["--policy", "--secrets", "--audit", "--upstream-ca"])
@pytest.mark.parametrize("linked", [False, True], ids=["plain", "link"])
def test_what_a_run_goes_by_cannot_be_swapped(option: str, linked: bool, uid: int | None) -> None:
    content = {
        "--policy": 'allow = ["good.test"]\n',
        "--secrets": '[KEY]\nenv = "EXEAT_TEST_KEY"\nhosts = ["good.test"]\n',
        "--audit": "",
        "--upstream-ca": Authority(None).certificate_pem.decode(),
    }[option]
    with folder_of(uid) as folder:
        name = folder / "outer" / "conf" / "file.toml"
        name.parent.mkdir(parents=True)
        name.write_text(content)
        named = name
        if linked:
            named = folder / "named"
            (folder / "link").symlink_to("outer")
            named.symlink_to("link/conf/file.toml")
        if uid is not None:
            subprocess.run(["chown", "-hR", f"{uid}:{uid}", str(folder)], check=True)
        links = [f"swap={folder}/link", f"remove={named}"] if linked else []
        tries = [
            f"plant={name}", f"shorten={name}", f"replace={name}", f"remove={name}", *links,
            f"swap={name.parent}", f"swap={name.parent.parent}",
        ]  # fmt: skip
        env = environment(EXEAT_TEST_KEY="some value that is long enough")
        if option == "--audit" and linked:
            pytest.skip("a log that is a link is refused")
        more = ["--intercept", "all"] if option == "--upstream-ca" else []
        done = exeat(option, str(named), *more, "--quiet", command=python(TRY, *tries), uid=uid, cwd=folder, env=env)
        assert (done.status, done.stdout, done.stderr) == (0, "", "")
        if option != "--audit":
            assert name.read_text() == content
        control = [each for each in tries if not each.startswith("remove") or each == f"remove={named}"]
        outside = subprocess.run(
            [*as_user(uid), *python(TRY, *control)], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert outside.stdout.split() == control, outside.stderr
