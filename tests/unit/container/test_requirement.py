"""A dependency is a package with its versions and hashes, and never an option of pip."""

from __future__ import annotations

import pytest

from exeat.container.requirement import check_requirement, join_requirements
from exeat.errors import ConfigError

_HASH = f"--hash=sha256:{'a' * 64}"


@pytest.mark.parametrize(
    "text",
    [
        "requests",
        "requests==2.32.3",
        "requests>=2.31,<3",
        "ruamel.yaml~=0.18",
        "requests[socks,use_chardet]>=2",
        "tomli>=2; python_version < '3.11'",
        'pywin32 ; sys_platform == "win32" and (python_version >= "3.8")',
        "numpy==1.26.*",
        "thing @ https://files.example.com/thing-1.0-py3-none-any.whl",
        f"requests==2.32.3 {_HASH}",
        f"requests==2.32.3 {_HASH} --hash=sha512:{'b' * 128}",
        f"requests==2.32.3; python_version < '3.13' {_HASH}",
        "pip-tools",
    ],
)
def test_a_requirement_is_taken_as_it_is(text: str) -> None:
    assert check_requirement(text) == text


def test_spaces_around_it_are_nothing() -> None:
    assert check_requirement(f"  requests==1   {_HASH} ") == f"requests==1 {_HASH}"


@pytest.mark.threat("T-O3")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not a requirement"),
        ("-r /etc/passwd", "not a requirement"),
        ("-e .", "not a requirement"),
        ("--index-url https://evil.example.com/", "not a requirement"),
        ("requests --index-url=https://evil.example.com/", "not a requirement"),
        ("requests -i https://evil.example.com/", "not a requirement"),
        ("requests; python_version > '3' --global-option=x", "not a requirement"),
        ("requests; python_version > '3' --config-settings='a=b'", "not a requirement"),
        ("requests; python_version > '3' -C a=b", "not a requirement"),
        ("requests; python_version > '3' --pre --hash=x", "not a hash"),
        ("requests\n--index-url https://evil.example.com/", "more than one"),
        ("requests # harmless", "more than one"),
        ("requests==${VERSION}", "more than one"),
        ("requests \\", "more than one"),
        ("./here", "not a requirement"),
        ("/etc/passwd", "not a requirement"),
        ("https://files.example.com/thing.whl", "not a requirement"),
        ("git+https://example.com/thing", "not a requirement"),
        ("thing @ git+https://example.com/thing", "not https"),
        ("thing @ file:///etc/passwd", "not https"),
        ("thing @ http://files.example.com/thing.whl", "not https"),
        ("thing @ https:///thing.whl", "not https"),
        ("thing @ https://[x/thing.whl", "not a URL"),
        ("requests==2 --hash=md5:aaaa", "is not a hash"),
        (f"requests==2 --hash=sha256:{'a' * 63}", "is not a hash"),
        (f"requests>=2 {_HASH}", "a hash belongs to one version"),
        (f"requests {_HASH}", "a hash belongs to one version"),
        ("pip", "pip does not stay"),
        ("PIP>=20", "pip does not stay"),
    ],
)
def test_all_else_is_refused_and_said_why(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_requirement(text)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="a password in it would stay") as caught:
        check_requirement("thing @ https://me:hunter2@files.example.com/thing.whl")
    assert "hunter2" not in str(caught.value)


def test_those_of_a_sandbox_and_its_tools_are_one_list() -> None:
    assert join_requirements([("b", "a"), (), ("a", "c")]) == ("a", "b", "c")


def test_hashes_are_for_all_or_for_none() -> None:
    """pip checks all of them as soon as one has a hash; it would refuse the others in the middle of a build."""
    assert join_requirements([(f"a==1 {_HASH}", f"b==1 {_HASH}")])
    with pytest.raises(ConfigError, match="'b==1' has no hash"):
        join_requirements([(f"a==1 {_HASH}",), ("b==1",)])
