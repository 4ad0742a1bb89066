"""pip's settings of this machine, as they work inside a build."""

from __future__ import annotations

from pathlib import Path

import pytest

from exeat.container.images.package_index import find_pip, read_package_index, without_passwords
from exeat.errors import ConfigError

_NONE = {"PIP_CONFIG_FILE": "/dev/null"}


def test_without_settings_packages_come_from_where_pip_looks_by_itself() -> None:
    index = read_package_index(_NONE)
    assert index.environment == {}
    assert index.needs_network


def test_variables_win_over_files_and_install_over_global(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text(
        "[global]\nindex-url = https://a.test/\ntrusted_host = x.test\n[install]\nindex-url = https://b.test/\n"
    )
    given = {"PIP_CONFIG_FILE": str(conf), "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert read_package_index(given).environment["PIP_INDEX_URL"] == "https://b.test/"
    assert read_package_index(given).environment["PIP_TRUSTED_HOST"] == "x.test"
    chosen = read_package_index({**given, "PIP_INDEX_URL": "https://c.test/"})
    assert chosen.environment["PIP_INDEX_URL"] == "https://c.test/"


def test_a_folder_of_packages_goes_along_and_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "a-1-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "notes.txt").write_bytes(b"not a package")
    index = read_package_index({**_NONE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{tmp_path} file://{tmp_path}"})
    assert index.files == {f"links/{number}/a-1-py3-none-any.whl": b"wheel" for number in (0, 1)}
    assert index.environment["PIP_FIND_LINKS"] == "/exeat-build/links/0 /exeat-build/links/1"
    assert not index.needs_network


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "https://files.test/"}, True),
        ({"PIP_NO_INDEX": "true"}, False),
        ({"PIP_NO_INDEX": "0"}, True),
        ({"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "https://unused.test/"}, False),
    ],
)
def test_a_build_has_a_network_only_if_something_is_to_be_fetched(settings: dict[str, str], needs: bool) -> None:
    assert read_package_index({**_NONE, **settings}).needs_network is needs


def test_proxies_of_the_environment_and_an_authority_of_ones_own_go_along(tmp_path: Path) -> None:
    cert = tmp_path / "ca.pem"
    cert.write_text("CERT")
    index = read_package_index({**_NONE, "PIP_CERT": str(cert), "HTTPS_PROXY": "http://p.test:1", "SHELL": "/bin/sh"})
    assert index.environment == {"PIP_CERT": "/exeat-build/cert.pem", "HTTPS_PROXY": "http://p.test:1"}
    assert index.files == {"cert.pem": b"CERT"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"PIP_INDEX_URL": "file:///srv/simple"}, "is not http"),
        ({"PIP_EXTRA_INDEX_URL": "https://a.test /srv/simple"}, "is not http"),
        ({"PIP_FIND_LINKS": "/never/there"}, "is not a folder"),
        ({"PIP_CERT": "/never/there"}, "No such file"),
    ],
)
def test_what_cannot_work_inside_a_build_is_said_before_it(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_package_index({**_NONE, **settings})


def test_a_file_of_settings_that_is_not_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = x\n")
    with pytest.raises(ConfigError, match="settings of pip cannot be read") as caught:
        read_package_index({"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")})
    assert str(tmp_path) in str(caught.value)


@pytest.mark.threat("T-O2")
def test_passwords_are_in_no_log_and_no_repr() -> None:
    index = read_package_index({**_NONE, "PIP_INDEX_URL": "https://me:hunter2@index.test/simple"})
    assert "hunter2" in index.environment["PIP_INDEX_URL"]  # the control: pip has it
    assert "hunter2" not in repr(index)
    assert without_passwords("from https://me:hunter2@index.test/x and http://tok@b/") == (
        "from https://****@index.test/x and http://****@b/"
    )
    assert without_passwords("https://index.test/a@b") == "https://index.test/a@b"
    assert without_passwords("https://me:hunter2@2@index.test/x") == "https://****@index.test/x"


@pytest.mark.threat("T-O2")
@pytest.mark.parametrize("password", ["hun/ter2", "hun?ter2", "hun#ter2"])
def test_a_password_that_a_url_ends_in_is_refused_and_not_repeated(password: str) -> None:
    """pip would take the first half for a port, and print all of it in its error."""
    with pytest.raises(ConfigError, match="%2F") as caught:
        read_package_index({**_NONE, "PIP_EXTRA_INDEX_URL": f"https://me:{password}@index.test/simple"})
    assert "hun" not in str(caught.value)
    assert "ter2" not in str(caught.value)


def test_the_pip_that_is_lent_is_the_newest_one_here(tmp_path: Path) -> None:
    assert find_pip([tmp_path]) is None
    (tmp_path / "pip-23.0-py3-none-any.whl").write_bytes(b"old")
    (tmp_path / "pip-24.0-py3-none-any.whl").write_bytes(b"new")
    assert find_pip([tmp_path, tmp_path / "missing"]) == b"new"
