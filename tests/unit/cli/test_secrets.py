"""`exeat secrets check`: what it prints, what it refuses, and that it runs nothing and shows no value."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from exeat.cli.main import main
from exeat.cli.secrets import EPILOG
from exeat.secrets.setup.config import combine, parse_secrets

VALUE = "Qx7-REAL-credential-93"


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_one_line_for_each_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Name, source, hosts, parts and header. Nothing is run, and arguments of a command are not shown."""
    token, ran = tmp_path / "token", tmp_path / "ran"
    write(token, VALUE)
    text = json.dumps(
        {
            "A": {"value": VALUE, "hosts": ["a.test", "*.b.test:8443 private"]},
            "B": {"env": "NOT_SET_ANYWHERE", "hosts": ["a.test"], "where": ["body", "headers"]},
            "C": {"file": str(token), "hosts": ["a.test"], "inject": {"header": "X-Key", "format": "k {value}"}},
            "D": {"command": ["touch", str(ran), VALUE], "hosts": ["10.0.0.5"], "where": [], "inject": {"header": "Y"}},
        }
    )
    assert main(["secrets", "check", write(tmp_path / "s.json", text)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "A: value; to a.test:443, *.b.test:8443 private; in headers, basic, query",
        "B: env NOT_SET_ANYWHERE; to a.test:443; in headers, body",
        f"C: file {token}; to a.test:443; in headers, basic, query; sets X-Key",
        "D: command touch; to 10.0.0.5:443; in nothing; sets Y",
    ]
    assert err == ""
    assert not ran.exists()


def test_files_are_taken_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a run would take them: a name in two of them is an error that names both."""
    first = write(tmp_path / "a.toml", f'[A]\nvalue = "{VALUE}"\nhosts = ["a.test"]\n')
    second = write(tmp_path / "b.json", '{"secrets": {"B": {"env": "B", "hosts": ["a.test"]}}}')
    third = write(
        tmp_path / "c.toml", 'allow = ["x.test"]\nintercept = "all"\n[secrets.A]\nenv = "C"\nhosts = ["a.test"]'
    )
    assert main(["secrets", "check", first, second]) == 0
    assert [line[:2] for line in capsys.readouterr().out.splitlines()] == ["A:", "B:"]
    assert main(["secrets", "check", third]) == 0
    capsys.readouterr()
    assert main(["secrets", "check", first, second, third]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"exeat: {third}:3:10: the secret A is given twice" in err
    assert f"{first}:1:2" in err


def test_warnings_go_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is usable all the same."""
    token = write(tmp_path / "token", VALUE, 0o644)
    text = f'[A]\nvalue = "{VALUE}"\nhosts = ["a.test"]\n[B]\nfile = "{token}"\nhosts = ["a.test"]\n'
    path = write(tmp_path / "s.toml", text + '[C]\nfile = "/no/such/file"\nhosts = ["a.test"]\n', 0o644)
    empty = write(tmp_path / "empty.toml", "")
    assert main(["secrets", "check", path, empty]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    warnings = err.splitlines()
    assert [line.startswith("exeat: warning: ") for line in warnings] == [True] * 4
    for warning, start in zip(
        warnings, (f"{path}: holds", f"{empty}: has no", f"{path}:4:2: B:", f"{path}:7:2: C:"), strict=True
    ):
        assert warning.removeprefix("exeat: warning: ").startswith(start)
    assert VALUE not in out + err


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f'[A]\nvalue = "{VALUE}\\n"\nhosts = ["a.test"]', ":2:10: "),
        (f'[A]\nvalue = ["{VALUE}"]\nhosts = ["a.test"]', ":2:1: "),
        (f"[A]\nvalue = {VALUE}", ":2:9: "),
        (f'[A]\nvalue = "{VALUE}', ":2:32: "),
        (f'[A]\nvalue = "{VALUE}"\nhosts = ["*.com force"]', ":3:17: "),
        (f'[A]\nvalue = "{VALUE}"\nhosts = ["a.test"]\nplaceholder = "{VALUE}"', ":1:2: "),
        (f'A = "{VALUE}"', ":1:6: "),
        (f'allow = ["te$t"]\n[secrets.A]\nvalue = "{VALUE}"\nhosts = ["a.test"]', ":1:13: "),
        (f'alow = []\n[secrets.A]\nvalue = "{VALUE}"\nhosts = ["a.test"]', ":1:1: "),
        (f'allow = []\nsecrets = "{VALUE}"', ":2:12: "),
    ],
)
def test_what_cannot_be_used_is_2(text: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The place and what was expected; nothing on stdout; no value anywhere."""
    path = write(tmp_path / "s.toml", text)
    assert main(["secrets", "check", path]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"exeat: {path}{place}")
    assert VALUE not in err


def test_files_that_cannot_be_read_are_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Never taken for a file without secrets."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "pipe"):
        assert main(["secrets", "check", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"exeat: {path}: ")


def test_output_cannot_carry_escape_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file may be someone else's."""
    text = json.dumps({"A": {"command": ["\x1b[31mx"], "hosts": ["a.test"]}})
    assert main(["secrets", "check", write(tmp_path / "s.json", text)]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert r"command \x1b[31mx" in out


def test_the_example_in_the_help_is_a_usable_file() -> None:
    """What is indented is TOML as it stands."""
    text = "\n".join(line for line in EPILOG.splitlines() if line.startswith("  ") or not line)
    assert [spec.name for spec in combine([parse_secrets(text, "s.toml")])] == ["GITHUB_TOKEN", "DEPLOY_KEY"]


@pytest.mark.parametrize("command", [["secrets"], ["secrets", "check"]], ids=" ".join)
def test_help_fits_in_80_columns(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of every other command."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: exeat secrets")
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_a_file_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    """argparse's own status."""
    for arguments in (["secrets"], ["secrets", "check"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
        assert "usage: exeat secrets" in capsys.readouterr().err
