"""When a command failed: which hidden path it may have wanted, by what is known of the programs that it names."""

from __future__ import annotations

import pytest

from exeat.files.keys.hidden import HiddenPath
from exeat.run.files.hints import name_hidden_keys

HIDDEN = [
    HiddenPath("/home/me/.aws", (), "keys of cloud services", ("aws", "cdk")),
    HiddenPath("/home/me/.git-credentials", (), "credentials for Git hosts", ("git push", "git fetch")),
    HiddenPath("/home/me/it's here", (), "asked for", ("tool",)),
    HiddenPath("/home/me/.netrc", (), "credentials for downloads"),
]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["aws", "s3", "ls"], ["/home/me/.aws"]),
        (["/usr/bin/aws", "s3", "ls"], ["/home/me/.aws"]),
        (["sh", "-c", "cd x && aws s3 ls"], ["/home/me/.aws"]),
        (["git", "push"], ["/home/me/.git-credentials"]),
        (["git", "-C", "x", "push", "origin"], ["/home/me/.git-credentials"]),
        (["git", "diff", "--exit-code"], []),
        (["push"], []),
        (["false"], []),
    ],
)
def test_programs_and_what_they_miss(argv: list[str], named: list[str]) -> None:
    assert [line.split(" is hidden")[0] for line in name_hidden_keys(HIDDEN, argv)] == named


def test_the_line_can_be_acted_on() -> None:
    [line] = name_hidden_keys(HIDDEN, ["aws"])
    assert line == (
        "/home/me/.aws is hidden from the command (keys of cloud services); to show it: --show /home/me/.aws"
    )
    [line] = name_hidden_keys(HIDDEN, ["tool"])
    assert line.endswith("""--show '/home/me/it'"'"'s here'""")


def test_nothing_unprintable_is_said() -> None:
    [line] = name_hidden_keys([HiddenPath("/a\x1b[2J\nb", (), "asked for", ("x",))], ["x"])
    assert line.isprintable()
