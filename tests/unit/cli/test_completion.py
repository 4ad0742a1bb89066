"""Completion in the shells themselves: real ones source the scripts, and are asked what they would offer."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from exeat.cli.completion import places_of, script_for
from exeat.cli.main import build_parser, main
from tests.support.programs import need

pytestmark = pytest.mark.thorough

# What is typed, what must be offered, what must not be.
CASES: list[tuple[str, set[str], set[str]]] = [
    ("exeat ", {"run", "proxy", "check", "completion"}, {"--help", "allow", "policy.toml"}),
    ("exeat pr", {"proxy"}, {"run"}),
    ("exeat --v", {"--version"}, {"--help"}),
    (
        "exeat proxy ",
        {"create", "allow", "block", "list", "log", "reset", "ls", "rm", "files", "pending", "approve", "deny"},
        {"run"},
    ),
    ("exeat proxy --name work li", {"list"}, {"ls", "work"}),
    ("exeat proxy --name ", {"default", "work"}, {"list"}),
    ("exeat proxy list --name w", {"work"}, {"default"}),
    ("exeat proxy log -", {"-f", "--follow", "--since", "--name"}, {"--yes"}),
    ("exeat proxy list --name work --j", {"--json"}, set()),
    ("exeat proxy allow ", set(), {"policy.toml", "work", "allow"}),
    ("exeat run --name=w", {"work"}, {"default"}),
    ("exeat run --jail ", {"auto", "netns", "nft", "vm", "env"}, {"work"}),
    ("exeat run --accel=", {"auto", "kvm", "tcg"}, {"work"}),
    ("exeat run --vm --image aud", {"audit.jsonl"}, {"policy.toml"}),
    ("exeat run --jail=ne", {"netns"}, {"nft"}),
    ("exeat run --files ", {"view", "host"}, {"work", "policy.toml"}),
    ("exeat run --write pol", {"policy.toml"}, {"audit.jsonl"}),
    ("exeat run --hide=", {"policy.toml", "audit.jsonl"}, {"--hide"}),
    ("exeat run --la", {"--layer-size"}, {"--learn"}),
    ("exeat run --read-only aud", {"audit.jsonl"}, {"policy.toml"}),
    ("exeat proxy files --forget pol", {"policy.toml"}, {"audit.jsonl"}),
    ("exeat proxy files --files ", {"view", "host"}, {"work"}),
    ("exeat run --ask", {"--ask", "--ask-timeout"}, {"--ask-fd"}),
    ("exeat check --policy pol", {"policy.toml"}, {"audit.jsonl"}),
    ("exeat check --allow ", set(), {"policy.toml"}),
    ("exeat audit verify aud", {"audit.jsonl"}, {"policy.toml"}),
    ("exeat completion ", {"bash", "zsh", "fish"}, {"policy.toml"}),
    ("exeat run --allow x.test -- run-me-pl", {"run-me-please"}, {"--name"}),
    ("exeat run --quiet run-me-pl", {"run-me-please"}, set()),
    ("exeat run -- cat aud", {"audit.jsonl"}, {"policy.toml"}),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two files, a program in PATH, and two sandboxes."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, text in (
        ("exeat", f'exec {shlex.quote(sys.executable)} -m exeat "$@"'),
        ("run-me-please", "exit 0"),
    ):
        (binaries / name).write_text(f"#!/bin/sh\n{text}\n")
        (binaries / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("EXEAT_HOME", str(tmp_path / "home"))
    for name in ("work", "default"):
        assert main(["proxy", "create", "--name", name]) == 0
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "policy.toml").touch()
    (folder / "audit.jsonl").touch()
    monkeypatch.chdir(folder)
    return tmp_path


def write_script(shell: str, path: Path) -> Path:
    path.write_text(script_for(shell, places_of(build_parser())))
    return path


def output_of(argv: Sequence[str], given: str = "") -> str:
    done = subprocess.run(argv, input=given, capture_output=True, text=True, check=False, timeout=50)
    assert done.stderr == "", done.stderr
    return done.stdout


def bash_words(line: str) -> list[str]:
    """As bash takes a line apart: `=` is a word of its own."""
    words = line.replace("=", " = ").split(" ")
    return [word for word in words[:-1] if word] + [words[-1]]


def ask_bash(place: Path, lines: Sequence[str]) -> list[set[str]]:
    """Calls the function that bash would call, with the words that it would set."""
    script = [f"source {write_script('bash', place / 'exeat.bash')}", "complete -p exeat"]
    for line in lines:
        words = bash_words(line)
        script += [
            f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}",
            "_exeat exeat; printf '%s\\n' \"${COMPREPLY[@]}\" @@",
        ]
    out = output_of(["bash", "--noprofile", "--norc", "-u"], "\n".join(script))
    head, _, rest = out.partition("\n")
    assert head == "complete -F _exeat exeat"
    return sections(rest)


def ask_fish(place: Path, lines: Sequence[str]) -> list[set[str]]:
    script = [f"source {write_script('fish', place / 'exeat.fish')}"]
    script += [f"complete -C {shlex.quote(line)}; echo @@" for line in lines]
    out = output_of(["fish", "--no-config", "-c", "\n".join(script)])
    return [
        {offer.partition("\t")[0].partition("=")[2] or offer.partition("\t")[0] for offer in each}
        for each in sections(out)
    ]


ZSHRC = """
PROMPT= RPROMPT=
autoload -Uz compinit
compinit -u -D
setopt noautolist noautomenu nolistbeep nobeep
zstyle ':completion:*' use-cache no
compadd() { # note what is offered, then offer it
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\\ * ]]; then
    builtin compadd "$@"
    return $?
  fi
  typeset -a found
  builtin compadd -A found "$@"
  print -rl -- $found >>$NOTED
  builtin compadd "$@"
}
finish() { print -r -- @@ >>$NOTED; BUFFER= }
zle-line-init() { print -n READY }
zle -N finish
zle -N zle-line-init
bindkey -e
bindkey '^I' complete-word
bindkey '^O' finish
"""


def ask_zsh(place: Path, lines: Sequence[str]) -> list[set[str]]:
    """Types the lines, with a Tab behind each, at a zsh that notes what it offers."""
    noted = place / "noted"
    (place / "functions").mkdir()
    write_script("zsh", place / "functions" / "_exeat")
    (place / ".zshrc").write_text(f"NOTED={noted}\nfpath=({place}/functions $fpath)\n{ZSHRC}")
    typed = "".join(f"{line}\t\x0f" for line in lines) + "exit\r"
    script = f"""
        zmodload zsh/zpty
        zpty it 'exec env ZDOTDIR={place} TERM=xterm zsh -d -i'
        zpty -r it line '*READY*' # before that the terminal itself would take what is typed
        zpty -w -n it {shlex.quote(typed)}
        while zpty -r it line; do :; done
    """
    output_of(["zsh", "-f", "-c", script])
    return sections(noted.read_text())


def sections(text: str) -> list[set[str]]:
    """What was offered for each line, without the blank or slash that a shell puts behind it."""
    return [{word.strip().rstrip("/") for word in part.split("\n") if word.strip()} for part in text.split("@@\n")[:-1]]


SHELLS: dict[str, Callable[[Path, Sequence[str]], list[set[str]]]] = {
    "bash": ask_bash,
    "zsh": ask_zsh,
    "fish": ask_fish,
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_offers_what_may_follow(shell: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands, options, choices, files, names of sandboxes; behind `run --` what that command would be offered."""
    need(shell)
    offered = SHELLS[shell](place, [line for line, _, _ in CASES])
    assert len(offered) == len(CASES)
    for (line, wanted, unwanted), found in zip(CASES, offered, strict=True):
        assert wanted <= found, f"{shell}: {line!r} offers {sorted(found)[:40]}"
        assert not unwanted & found, f"{shell}: {line!r} offers {sorted(found)[:40]}"


def test_bash_completes_a_value_behind_an_equals_sign_that_it_did_not_take_apart(place: Path) -> None:
    """Where COMP_WORDBREAKS has no `=`, the option is a part of the word and has to stay in front of it."""
    need("bash")
    script = write_script("bash", place / "exeat.bash")
    line = 'COMP_WORDS=(exeat run --name=w) COMP_CWORD=2; _exeat; echo "${COMPREPLY[@]}"'
    assert output_of(["bash", "--norc", "-c", f"source {script}; {line}"]) == "--name=work\n"


def test_every_option_of_the_parser_is_offered_but_hidden_ones() -> None:
    """The scripts are made from the parser: nothing has to be kept up to date by hand."""
    places = {place.words: place for place in places_of(build_parser())}
    assert ("proxy", "allow") in places
    names = {name for flag in places["run",].flags for name in flag.names}
    assert {"--allow", "--name", "--jail", "-h"} <= names
    assert "--ask-fd" not in names
    for shell in SHELLS:
        script = script_for(shell, list(places.values()))
        for place in places.values():
            for flag in place.flags:
                for name in flag.names:
                    assert name.removeprefix("--") in script


def test_completion_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    """`exeat completion bash`, and a shell that is not known is refused."""
    assert main(["completion", "bash"]) == 0
    assert "complete -F _exeat exeat" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
