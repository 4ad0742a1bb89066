"""The account of a container's user: there once, with the home that it has."""

from __future__ import annotations

from exeat.jail.container.accounts import Accounts, with_account

_ROOT = b"root:x:0:0:root:/root:/bin/bash\n"
_NODE = b"node:x:1000:1000::/home/node:/bin/bash\n"
_GROUPS = b"root:x:0:\nnode:x:1000:\n"


def test_who_is_not_there_is_added() -> None:
    found = with_account(Accounts(_ROOT + _NODE, _GROUPS), "501:20", "/home/sandbox")
    assert found.passwd == _ROOT + _NODE + b"sandbox:x:501:20:sandbox:/home/sandbox:/bin/sh\n"
    assert found.group == _GROUPS + b"sandbox:x:20:\n"


def test_who_is_there_keeps_the_name_and_gets_the_home() -> None:
    for user in ("1000:1000", "1000", "node"):
        found = with_account(Accounts(_ROOT + _NODE, _GROUPS), user, "/home/sandbox")
        assert found == Accounts(_ROOT + b"node:x:1000:1000::/home/sandbox:/bin/bash\n", _GROUPS)


def test_no_name_is_there_twice() -> None:
    taken = Accounts(b"sandbox:x:7:7:::\n", b"sandbox:x:7:\n")
    found = with_account(taken, "8:8", "/h")
    assert found == Accounts(
        b"sandbox:x:7:7:::\nsandbox-8:x:8:8:sandbox:/h:/bin/sh\n", b"sandbox:x:7:\nsandbox-8:x:8:\n"
    )


def test_an_image_without_accounts_and_one_with_strange_ones() -> None:
    assert with_account(Accounts(), "8:8", "/h").passwd == b"sandbox:x:8:8:sandbox:/h:/bin/sh\n"
    assert with_account(Accounts(b"\xff:x:9:9:::\nnot a line\n"), "0", "/root").passwd.startswith(b"\xff:x:9:9:::\n")
    assert with_account(Accounts(_ROOT), "postgres", "/h") == Accounts(_ROOT)
