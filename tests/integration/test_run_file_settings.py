"""What is said about files reaches the jail as one policy: options, policy files and sandboxes together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs.running import environment, exeat

# Runs exeat up to where the jail would be built, and tells what it would be built from.
UP_TO_THE_JAIL = """
import json, sys
import exeat.run.lifecycle
from exeat.cli.main import main
from exeat.errors import JailError

def tell(bodies, jail, plan, terminal):
    loaded = {"tomllib", "exeat.policy", "exeat.sources"} & set(sys.modules)
    assert not loaded or plan.settings.folder, "secrets may be read"
    print(json.dumps(plan.files._asdict()), flush=True)
    raise JailError("as far as this")

exeat.run.lifecycle._build_first = tell
exeat.run.lifecycle.refuse_nesting = lambda body, files: None  # root has no sandboxes inside
sys.exit(main(["run", *sys.argv[1:], "--", "true"]))
"""
NOTHING_SAID: dict[str, Any] = {
    "mode": "view", "write": [], "read_only": [], "hide": [], "show": [], "layer_bytes": 8 << 30, "nest": False,
}  # fmt: skip


def files_of(*options: str, cwd: Path, **variables: str) -> dict[str, Any]:
    """The policy that a run with these options has."""
    done = subprocess.run(
        [sys.executable, "-c", UP_TO_THE_JAIL, *options], capture_output=True, text=True, timeout=100, check=False,
        cwd=cwd, env=environment(EXEAT_HOME=str(cwd / "state"), **variables),
    )  # fmt: skip
    assert "as far as this" in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "here"
    folder.mkdir()
    return folder


def test_without_a_word_it_is_the_view(here: Path) -> None:
    assert files_of(cwd=here) == NOTHING_SAID


def test_options_and_policy_files_add_up(here: Path) -> None:
    (here / "one.toml").write_text('[files]\nwrite = ["build"]\nlayer_size = "1GB"\nnest = true\n')
    (here / "two.json").write_text(json.dumps({"files": {"hide": ["~/notes"], "layer_size": 10**9}}))
    found = files_of("--write", "lib", "--policy", "one.toml", "--policy", "two.json", cwd=here)
    said = {"write": ["lib", f"{here}/build"], "hide": ["~/notes"], "layer_bytes": 10**9, "nest": True}
    assert found == NOTHING_SAID | said


def test_the_policy_of_the_environment_counts(here: Path) -> None:
    (here / "one.toml").write_text('[files]\nmode = "host"\n')
    assert files_of(cwd=here, EXEAT_POLICY="one.toml") == NOTHING_SAID | {"mode": "host"}
    assert files_of("--files", "view", cwd=here, EXEAT_POLICY="one.toml") == NOTHING_SAID


def test_a_policy_with_secrets_says_it_too(here: Path) -> None:
    """What is prepared for secrets goes the same way."""
    policy = here / "one.toml"
    policy.write_text('[secrets.KEY]\nvalue = "hunter2hunter2"\nhosts = ["a.test"]\n[files]\nshow = ["~/.netrc"]\n')
    policy.chmod(0o600)
    assert files_of("--policy", "one.toml", cwd=here) == NOTHING_SAID | {"show": ["~/.netrc"]}


def test_what_a_sandbox_keeps_and_what_a_policy_file_says(here: Path) -> None:
    (here / "one.toml").write_text('[files]\nwrite = ["/b"]\nnest = true\n')
    variables = environment(EXEAT_HOME=str(here / "state"))
    for words in (["create"], ["files", "--write", "/a", "--layer-size", "1GB"]):
        subprocess.run(
            [sys.executable, "-m", "exeat", "proxy", "--name", "work", *words], check=True, timeout=100, cwd=here,
            env=variables, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    found = files_of("--name", "work", "--write", "/c", "--policy", "one.toml", cwd=here)
    assert found == NOTHING_SAID | {"write": ["/c", "/a", "/b"], "layer_bytes": 10**9, "nest": True}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ('mode = "host"', 'mode = "view"', "two.toml: files.mode: this contradicts one.toml: files.mode"),
        ('mode = "host"', 'hide = ["a"]', "two.toml: files.hide: with --files host"),
        ("mode = 1", "", "one.toml:2:8: files.mode is a number"),
    ],
)
def test_what_cannot_be_starts_nothing(first: str, second: str, said: str, here: Path) -> None:
    (here / "one.toml").write_text(f"[files]\n{first}\n")
    (here / "two.toml").write_text(f"[files]\n{second}\n")
    done = exeat("--policy", "one.toml", "--policy", "two.toml", command=["touch", "done"], cwd=here)
    assert (done.status, done.stdout) == (2, "")
    assert done.stderr.startswith(f"exeat: {said}")
    assert not (here / "done").exists()


def test_variables_alone_do_not_pass_for_what_a_policy_file_asks_for(here: Path) -> None:
    (here / "one.toml").write_text('[files]\nhide = ["a"]\n')
    done = exeat("--jail", "env", "--policy", "one.toml", command=["touch", "done"], cwd=here)
    assert done.status == 2
    assert "exeat: one.toml: files.hide: --jail env does not confine files" in done.stderr
    assert not (here / "done").exists()
    (here / "one.toml").write_text('[files]\nmode = "host"\n')
    assert exeat("--jail", "env", "--policy", "one.toml", command=["touch", "done"], cwd=here).status == 0
    assert (here / "done").exists()


def test_a_gateway_without_a_command_does_not_pass_for_it_either(here: Path) -> None:
    (here / "one.toml").write_text('[files]\nhide = ["a"]\n')
    done = subprocess.run(
        [sys.executable, "-m", "exeat", "serve", "--policy", "one.toml"], capture_output=True, text=True, timeout=100,
        check=False, cwd=here, env=environment(EXEAT_HOME=str(here / "state"), PROXY_PORT="0"),
    )  # fmt: skip
    assert done.returncode == 2
    assert "one.toml: files: exeat serve runs no command, so it confines no files" in done.stderr


@pytest.mark.parametrize("name", ["learned.toml", "learned.txt"])
def test_what_is_learned_of_files_is_in_the_learned_policy(name: str, here: Path) -> None:
    home = here.parent / "me"
    (home / "data").mkdir(parents=True)
    variables = {"EXEAT_HOME": str(here / "state"), "HOME": str(home)}
    options = ("--learn-out", name, "--layer-size", "1GB")
    done = exeat(
        *options, command=["touch", "real", f"{home}/data/a", f"{home}/.bashrc"], cwd=here, env=environment(**variables)
    )
    assert (done.status, (here / "real").exists(), list((home / "data").iterdir())) == (0, True, [])
    text = (here / name).read_text()
    assert "#   ~/.bashrc  1x  " in text
    if name.endswith(".toml"):
        again = files_of("--policy", name, cwd=here, HOME=str(home))
        assert again == NOTHING_SAID | {"write": ["~/data"], "layer_bytes": 10**9}
    else:
        assert "#   --write ~/data\n" in text
        assert "#   --layer-size 1000000000\n" in text
        assert files_of("--policy", name, cwd=here) == NOTHING_SAID
