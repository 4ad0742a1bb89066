"""Which settings files are taken for one that holds a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.files.keys.search import holds_secret


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ("[user]\n name = Ada\n email = ada@example.com\n[author]\n name = x\n", False),
        ('[credential "https://github.com"]\n helper = !/usr/bin/gh auth git-credential\n', False),
        (
            "[credential]\n helper = /usr/lib/git-core/git-credential-libsecret\n credentialStore = secretservice\n",
            False,
        ),
        ('[url "ssh://git@github.com/"]\n insteadOf = https://github.com/\n', False),
        ('[url "https://ada@git.example/"]\n insteadOf = x:\n', False),
        ("[global]\nindex-url = https://pypi.example/simple\nbreak-system-packages = true\n", False),
        ("org.gradle.jvmargs=-Xmx4g\n", False),
        (
            '[url "https://ghp_0123456789012345678901234567890123@github.com/"]\n insteadOf = https://github.com/\n',
            True,
        ),
        ("[global]\nextra-index-url = https://me:hunter2@pypi.example/simple\n", True),
        ("[global]\nindex-url=https://me:p@ss@pypi.example/", True),
        ("[http]\n extraheader = AUTHORIZATION: basic eDp5\n", True),
        ("[sendemail]\n smtpPass = x\n", True),
        ("<server><Password>x</Password></server>", True),
        ("mavenToken=x", True),
        ("", False),
    ],
)
def test_marks(tmp_path: Path, text: str, is_secret: bool) -> None:
    file = tmp_path / "settings"
    file.write_text(text)
    assert holds_secret(str(file)) is is_secret


def test_what_cannot_be_read_whole_is_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "huge").write_bytes(b"\n" * (257 << 10))
    assert holds_secret(str(tmp_path / "huge"))
    assert holds_secret(str(tmp_path / "gone"))
    assert holds_secret(str(tmp_path))
