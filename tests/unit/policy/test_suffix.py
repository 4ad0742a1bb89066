"""Public suffixes: the same answers as the library whose list is used."""

from __future__ import annotations

import pytest
from publicsuffixlist import PublicSuffixList

from exeat.policy.grammar import is_public_suffix, load_suffixes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("com", True), ("nowhere-at-all", True), ("co.uk", True), ("github.io", True), ("example.com", False),
        ("example.co.uk", False), ("example.github.io", False), ("ck", True), ("any.ck", True), ("www.ck", False),
        ("kobe.jp", True), ("any.kobe.jp", True), ("city.kobe.jp", False), ("a.city.kobe.jp", False),
        ("xn--55qx5d.cn", True), ("example.xn--55qx5d.cn", False), ("compute.amazonaws.com", True),
    ],
)  # fmt: skip
def test_known_names(name: str, expected: bool) -> None:
    """Plain entries, private ones, wildcards and their exceptions, international ones, and top-level domains."""
    assert is_public_suffix(name) is expected


def test_every_answer_is_that_of_the_library() -> None:
    """Each entry of the list, the names above it and some below it, in Unicode and with xn--: the library agrees."""
    library = PublicSuffixList(accept_unknown=True, accept_encoded_idn=True)
    checked = 0
    for entry in load_suffixes():
        plain = entry.removeprefix("!").removeprefix("*.").encode("idna").decode("ascii")
        for name in {plain, f"exeat.{plain}", f"a.b.{plain}", plain.partition(".")[2]}:
            if "." in name:
                public = library.is_public(name) or library.is_public(f"exeat.{name}")
                assert is_public_suffix(name) == public, name
                checked += 1
    assert checked > 20_000
