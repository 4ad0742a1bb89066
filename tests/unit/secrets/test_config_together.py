"""What must hold between secrets: names, placeholders, headers and AWS keys."""

from __future__ import annotations

import json

import pytest

from exeat.errors import ConfigError
from exeat.secrets.model import SecretSpec
from exeat.secrets.setup.config import combine, parse_secrets
from tests.unit.secrets.configs import HOSTS, VALUE, read, refused

# Secrets together


def one(name: str, *hosts: str, **settings: object) -> tuple[SecretSpec, ...]:
    table = {name: {"env": "B", "hosts": list(hosts or ("a.test",)), **settings}}
    return parse_secrets(json.dumps(table), f"{name.lower()}.json")


def test_a_name_in_two_places_is_refused_with_both() -> None:
    """Neither may silently win."""
    first = parse_secrets(f'[A]\nvalue = "{VALUE}"\n{HOSTS}', "first.toml")
    error = refused(lambda: combine([first, (), parse_secrets(f'\n[A]\nenv = "B"\n{HOSTS}', "second.toml")]))
    assert (error.where, "A is given twice" in error.public) == ("second.toml:2:2", True)
    assert "first.toml:1:2" in error.expected


def test_no_placeholder_may_be_a_part_of_another() -> None:
    """Which of the two was meant could not be told."""
    for first, second in (("abcdefgh", "xxabcdefghxx"), ("xxabcdefghxx", "abcdefgh"), ("abcdefgh", "abcdefgh")):
        error = refused(
            lambda first=first, second=second: combine([one("A", placeholder=first), one("B", placeholder=second)])  # type: ignore[misc]
        )
        assert "placeholder" in error.public
    assert len(combine([one("A", placeholder="abcdefgh"), one("B", placeholder="abcdefgi")])) == 2


@pytest.mark.parametrize(
    ("placeholder", "says"),
    [(VALUE, "its value is its"), (VALUE[3:15], "has its placeholder in it"), (f"x{VALUE}", "anyone may see")],
)
def test_a_placeholder_must_not_give_the_value_away(placeholder: str, says: str) -> None:
    """The command sees the placeholder."""
    text = f'[A]\nvalue = "{VALUE}"\n{HOSTS}\nplaceholder = "{placeholder}"'
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert says in caught.value.public
    assert placeholder not in str(caught.value)


def test_the_placeholder_of_another_secret_counts_too() -> None:
    """It would be replaced inside of the value, or show it."""
    value = parse_secrets(f'[A]\nvalue = "{VALUE}"\n{HOSTS}', "s.toml")
    error = refused(lambda: combine([value, one("B", placeholder=VALUE)]))
    assert "the placeholder of B" in error.public


def test_two_secrets_for_one_header_of_one_host_are_refused() -> None:
    """Only one could be sent; on hosts of their own both are fine."""
    inject = {"header": "Authorization"}
    other = {"header": "authorization"}
    error = refused(lambda: combine([one("A", "*.a.test", inject=inject), one("B", "b.a.test", inject=other)]))
    assert (error.where, "b.json" in error.where) == ("b.json:1:3", True)
    assert "A sets the header" in error.public
    assert "a.json:1:3" in error.expected
    combine([one("A", "*.a.test", inject=inject), one("B", "a.test", inject=other)])
    combine([one("A", inject=inject), one("B", inject={"header": "X-Other"})])


# hosts of the secret key, hosts of the key id, whether they belong together
OVERLAPS = [
    (["s3.test"], ["s3.test"], True),
    (["s3.test"], ["s4.test"], False),
    (["s3.test"], ["s3.test:8443"], False),
    (["s3.test:8000-9000"], ["s3.test:8443"], True),
    (["*.s3.test"], ["s3.test"], False),
    (["*.s3.test"], ["*.s3.test"], True),
    ([".s3.test"], ["s3.test"], True),
    ([".s3.test"], ["*.s3.test"], True),
    (["*.s3.test"], ["a.b.s3.test"], True),
    (["*.s3.test"], ["*.b.s3.test"], True),
    (["a.s3.test"], ["*.b.s3.test"], False),
    (["s3.test"], ["*.b.s3.test"], False),
    (["xs3.test"], [".s3.test"], False),
    (["10.0.0.5"], ["10.0.0.0/8"], True),
    (["10.0.0.5"], ["10.0.0.6"], False),
    (["10.0.0.5"], ["[::1]"], False),
    (["10.0.0.5"], ["s3.test"], False),
    (["a.test", "b.test"], ["c.test", "b.test"], True),
]


@pytest.mark.parametrize(("mine", "other", "paired"), OVERLAPS, ids=str)
@pytest.mark.parametrize("prefix", ["", "PROD_"])
def test_aws_keys_find_each_other(mine: list[str], other: list[str], paired: bool, prefix: str) -> None:
    """By name and by hosts; then the key id's placeholder looks like a key id. Either order of hosts is the same."""
    for first, second in ((mine, other), (other, mine)):
        secret, key_id = f"{prefix}AWS_SECRET_ACCESS_KEY", f"{prefix}AWS_ACCESS_KEY_ID"
        found = {spec.name: spec for spec in combine([one(secret, *first), one(key_id, *second)])}
        assert list(found) == [secret, key_id]
        assert found[secret].aws_key_id == (key_id if paired else "")
        assert found[key_id].shape == ("aws-key-id" if paired else "")
        assert found[secret].shape == ""


def test_an_aws_key_id_can_be_named() -> None:
    """What is said beats what is guessed, and a shape or placeholder that is given stays."""
    found = {
        spec.name: spec
        for spec in combine(
            [
                one("AWS_SECRET_ACCESS_KEY", aws_key_id="MY_ID"),
                one("AWS_ACCESS_KEY_ID"),
                one("MY_ID", shape="40"),
                one("OTHER_AWS_SECRET_ACCESS_KEY"),
                one("OTHER_AWS_ACCESS_KEY_ID", placeholder="AKIAXXXXXXXX"),
            ]
        )
    }
    assert found["AWS_SECRET_ACCESS_KEY"].aws_key_id == "MY_ID"
    assert (found["MY_ID"].shape, found["AWS_ACCESS_KEY_ID"].shape) == ("40", "")
    assert found["OTHER_AWS_SECRET_ACCESS_KEY"].aws_key_id == "OTHER_AWS_ACCESS_KEY_ID"
    assert found["OTHER_AWS_ACCESS_KEY_ID"].shape == ""


def test_a_named_aws_key_id_must_go_to_the_same_hosts() -> None:
    """Or it would never be there when it is needed."""
    error = refused(lambda: combine([one("A", "a.test", aws_key_id="B"), one("B", "b.test")]))
    assert (error.where, "no host in common" in error.public) == ("a.json:1:3", True)
