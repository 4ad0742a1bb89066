"""Which paths are hidden on a machine: those of the list that are there, wherever variables and links lead."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exeat.errors import ConfigError
from exeat.file_policy import FilePolicy
from exeat.files.keys.hidden import HiddenPath, hidden_paths
from tests.support.jails.forked import attempt
from tests.unit.files.keys.layered import UIDS, give, home_of, write

ORDINARY = 43210


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "home/me"
    made.mkdir(parents=True)
    return made


def found(
    home: Path,
    environ: dict[str, str] | None = None,
    *,
    hide: tuple[str, ...] = (),
    show: tuple[str, ...] = (),
    program: str = "",
    own: tuple[str, ...] = (),
) -> dict[str, HiddenPath]:
    """What is hidden of this test's folders, by its path from there."""
    policy = FilePolicy(hide=hide, show=show)
    base = home.parent.parent
    all_found = hidden_paths(str(home), environ or {}, ORDINARY, policy, program=program, own=own)
    return {each.path[len(str(base)) + 1 :]: each for each in all_found if each.path.startswith(f"{base}/")}


def test_keys_are_hidden_and_other_files_are_not(home: Path) -> None:
    for name in (".netrc", ".aws/credentials", ".bashrc", ".config/gh/hosts.yml", ".config/fish/config.fish"):
        write(home / name)
    assert sorted(found(home)) == ["home/me/.aws", "home/me/.config/gh", "home/me/.netrc"]


@pytest.mark.parametrize(
    "name",
    [
        ".ssh/id_rsa", ".gnupg/x", ".aws/x", ".azure/x", ".config/gcloud/x", ".kube/config", ".docker/config.json",
        ".netrc", ".git-credentials", ".config/gh/x", ".npmrc", ".pypirc", ".cargo/credentials",
        ".cargo/credentials.toml", ".config/hub", ".mozilla/x", ".config/google-chrome/x", ".config/chromium/x",
        ".password-store/x", ".config/Bitwarden CLI/x", ".bash_history", ".zsh_history",
        ".local/share/fish/fish_history", ".local/share/keyrings/x", ".claude/.credentials.json", ".codex/auth.json",
        ".gemini/oauth_creds.json", ".local/share/opencode/auth.json", ".config/JetBrains/IdeaIC2026.1/c.kdbx",
    ],
)  # fmt: skip
def test_each_of_these_is_on_the_list(home: Path, name: str) -> None:
    write(home / name)
    [place] = found(home)
    assert f"home/me/{name}".startswith(place)


@pytest.mark.parametrize(
    "name", [".docker/cli-plugins/x", ".cargo/bin/rustc", ".cargo/config.toml", ".claude/settings.json", ".gitconfig"]
)
def test_what_programs_need_and_holds_no_key_stays(home: Path, name: str) -> None:
    write(home / name, "[user]\nname = me\n")
    assert found(home) == {}


def test_settings_are_hidden_only_if_they_hold_a_secret(home: Path) -> None:
    write(home / ".config/pip/pip.conf", "[global]\nindex-url = https://me:password@pypi.example/simple\n")
    write(home / ".gradle/gradle.properties", "org.gradle.jvmargs=-Xmx4g\n")
    assert sorted(found(home)) == ["home/me/.config/pip/pip.conf"]


def test_of_the_ssh_folder_what_is_no_key_stays(home: Path) -> None:
    write(home / ".ssh/id_rsa")
    assert {"config", "known_hosts", "*.pub"} <= set(found(home)["home/me/.ssh"].keep)


def test_keys_that_the_ssh_configuration_names_are_hidden_wherever_they_are(home: Path) -> None:
    for name in ("Downloads/server.pem", "keys/with space", "keys/other", "keys/folder/x", ".ssh/id_rsa"):
        write(home / name)
    write(
        home / ".ssh/config",
        "Host server\n  IdentityFile ~/Downloads/server.pem\n"
        f'\tidentityfile="{home}/keys/with space"\n'
        "  IdentityFile ~/keys/folder\n  IdentityFile none\n  IdentityFile %d/x\n  IdentityFile ~/gone\n",
    )
    assert sorted(found(home)) == ["home/me/.ssh", "home/me/Downloads/server.pem", "home/me/keys/with space"]


def test_where_the_environment_says(home: Path) -> None:
    elsewhere = home.parent.parent / "elsewhere"
    for name in (
        "config/gh/x",
        "kube1",
        "kube2",
        "docker/config.json",
        "docker/other",
        "aws",
        "cargo/credentials.toml",
    ):
        write(elsewhere / name)
    write(home / ".config/gh/x")
    variables = {
        "XDG_CONFIG_HOME": f"{elsewhere}/config/",
        "KUBECONFIG": f"{elsewhere}/kube1:{elsewhere}/kube2:/not/there",
        "DOCKER_CONFIG": f"{elsewhere}/docker",
        "AWS_SHARED_CREDENTIALS_FILE": f"{elsewhere}/./aws",
        "CARGO_HOME": f"{elsewhere}/cargo",
        "HISTFILE": "/dev/null",
        "NETRC": "",
    }
    assert sorted(found(home, variables)) == [
        "elsewhere/aws",
        "elsewhere/cargo/credentials.toml",
        "elsewhere/config/gh",
        "elsewhere/docker/config.json",
        "elsewhere/kube1",
        "elsewhere/kube2",
        "home/me/.config/gh",
    ]


def test_a_runtime_folder_is_hidden_if_it_is_the_users_alone(home: Path) -> None:
    def hidden(folder: str, uid: int = os.geteuid()) -> list[str]:
        found = hidden_paths(str(home), {"XDG_RUNTIME_DIR": folder}, uid, FilePolicy())
        return [each.path for each in found if each.path.startswith(str(home))]

    folder = home / "runtime"
    folder.mkdir(0o700)
    assert hidden(str(folder)) == [str(folder)]
    home.chmod(0o700)
    for other in ("/tmp", "/run", str(home), str(home / "missing"), ""):
        assert hidden(other) == []
    assert hidden(str(folder), os.geteuid() + 1) == []
    folder.chmod(0o750)
    assert hidden(str(folder)) == []


def test_where_each_of_the_usual_folders_was_moved_to(home: Path) -> None:
    elsewhere = home.parent.parent / "elsewhere"
    for name in ("config/gh/x", "data/keyrings/x", "state/zsh/history", "cache/huggingface/token"):
        write(elsewhere / name)
    names = ("config", "data", "state", "cache")
    variables = {f"XDG_{name.upper()}_HOME": f"{elsewhere}/{name}" for name in names}
    assert sorted(found(home, variables)) == [
        "elsewhere/cache/huggingface/token",
        "elsewhere/config/gh",
        "elsewhere/data/keyrings",
        "elsewhere/state/zsh",
    ]


@pytest.mark.parametrize("value", ["/", "/etc", "~", "~/..", "/usr/bin"])
def test_a_variable_that_would_hide_too_much_is_an_error(home: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="cannot be hidden"):
        found(home, {"GNUPGHOME": value})


def test_a_link_and_where_it_leads_are_hidden(home: Path) -> None:
    write(home / "dotfiles/netrc")
    write(home / "dotfiles/config/gh/hosts.yml")
    (home / ".netrc").symlink_to("dotfiles/netrc")
    (home / ".config").symlink_to("dotfiles/config")
    (home / ".npmrc").symlink_to("nowhere")
    (home / ".bash_history").symlink_to("/dev/null")
    assert sorted(found(home)) == [
        "home/me/.netrc",
        "home/me/.npmrc",
        "home/me/dotfiles/config/gh",
        "home/me/dotfiles/netrc",
    ]


def test_a_folder_of_which_some_stays_is_still_found_by_its_link(home: Path) -> None:
    write(home / "dotfiles/ssh/id_rsa")
    (home / ".ssh").symlink_to("dotfiles/ssh")
    assert sorted(found(home)) == ["home/me/dotfiles/ssh"]


def test_files_that_links_in_a_hidden_folder_lead_to_are_hidden(home: Path) -> None:
    """Some keep their settings in a repository, and link to each file there."""
    write(home / "dotfiles/credentials")
    write(home / "dotfiles/ssh_config")
    write(home / "project/x")
    (home / ".aws").mkdir()
    (home / ".ssh").mkdir()
    (home / ".aws/credentials").symlink_to("../dotfiles/credentials")
    (home / ".aws/project").symlink_to("../project")
    (home / ".aws/shell").symlink_to("/bin/sh")
    (home / ".ssh/config").symlink_to("../dotfiles/ssh_config")
    paths = [each.path for each in hidden_paths(str(home), {}, os.getuid(), FilePolicy())]
    assert [each[len(str(home)) + 1 :] for each in paths if each.startswith(f"{home}/")] == [
        ".aws",
        ".ssh",
        "dotfiles/credentials",
    ]
    assert os.path.realpath("/bin/sh") not in paths


def test_a_folder_of_ours_that_is_closed_is_hidden_whole() -> None:
    """A command that runs as its owner could open it."""

    def look() -> None:
        paths = [each.path for each in hidden_paths(str(home), {}, uid, FilePolicy())]
        assert [each for each in paths if each.startswith(str(home))] == [f"{home}/.config"]

    uid = UIDS[-1]
    homes = home_of(uid)
    home = next(homes)
    write(home / ".config/gh/hosts.yml")
    give(home, uid)
    (home / ".config").chmod(0)
    assert attempt(look, uid=uid) == "ok"
    (home / ".config").chmod(0o700)
    list(homes)


def test_another_home_of_the_same_user_is_looked_through_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME can say anything. The account's own home directory has the keys all the same."""
    write(home.parent / "account/.netrc")
    write(home.parent / "other/.netrc")
    accounts = home.parent / "passwd"
    accounts.write_text(
        f"me:x:{ORDINARY}:1::{home.parent}/account:/bin/sh\n"
        f"you:x:{ORDINARY + 1}:1::{home.parent}/other:/bin/sh\n"
        f"daemon:x:2:2::{home.parent}/daemon:/usr/sbin/nologin\n"
        "broken\n"
    )
    monkeypatch.setattr("exeat.files.homes.ACCOUNTS", str(accounts))
    assert sorted(found(home)) == ["home/account/.netrc"]
    paths = {each.path for each in hidden_paths(str(home), {}, 0, FilePolicy())}
    assert f"{home.parent}/other/.netrc" in paths


def test_what_is_in_no_home_is_looked_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's commands wait for the look through everyone's home."""
    accounts = home.parent / "passwd"
    write(home.parent / "user0/.netrc")
    accounts.write_text("".join(f"u:x:{n + 9}:1::{home.parent}/user{n}:/bin/sh\n" for n in range(3)))
    monkeypatch.setattr("exeat.files.homes.ACCOUNTS", str(accounts))
    looked_at: list[str] = []

    def lstat(path: str, *, look: Callable[[str], os.stat_result] = os.lstat) -> os.stat_result:
        looked_at.append(path)
        return look(path)

    monkeypatch.setattr("exeat.files.keys.search.os.lstat", lstat)
    hidden_paths(str(home), {}, 0, FilePolicy())
    assert looked_at.count("/etc/gshadow") == 1
    assert looked_at.count(f"{home.parent}/user0/.netrc") == 1


def test_of_too_many_homes_the_rest_is_hidden_whole(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (home.parent / f"user{number}").mkdir()
    accounts = home.parent / "passwd"
    accounts.write_text("".join(f"u:x:{n}:1::{home.parent}/user{n}:/bin/sh\n" for n in range(20)))
    monkeypatch.setattr("exeat.files.homes.ACCOUNTS", str(accounts))
    monkeypatch.setattr("exeat.files.homes.HOMES", str(home.parent / "none"))
    paths = {each.path for each in hidden_paths(str(home), {}, 0, FilePolicy())}
    assert [n for n in range(20) if f"{home.parent}/user{n}" in paths] == [16, 17, 18, 19]


def test_a_home_that_is_the_root_or_not_there(home: Path) -> None:
    """As in containers. Variables are followed all the same."""
    write(home / "kube")
    for folder in ("/", "/nonexistent"):
        paths = {each.path for each in hidden_paths(folder, {"KUBECONFIG": str(home / "kube")}, ORDINARY, FilePolicy())}
        assert str(home / "kube") in paths
        assert not any(path.startswith("//") for path in paths)


def test_a_home_that_is_a_link(home: Path) -> None:
    write(home / ".netrc")
    (home.parent / "link").symlink_to("me")
    assert sorted(found(home.parent / "link").keys()) == ["home/me/.netrc"]


def test_the_program_that_a_key_is_for_finds_it(home: Path) -> None:
    write(home / ".codex/auth.json")
    write(home / ".claude/.credentials.json")
    assert sorted(found(home, program="codex")) == ["home/me/.claude/.credentials.json"]


def test_hide_adds(home: Path) -> None:
    write(home / "notes/x")
    write(home / "linked")
    (home / "link").symlink_to("linked")
    hidden = found(home, hide=("~/notes", str(home / "link")))
    assert sorted(hidden) == ["home/me/link", "home/me/linked", "home/me/notes"]


@pytest.mark.parametrize("path", ["~/nothing", "/", "~", "/etc", "/dev/null"])
def test_hide_of_what_cannot_be_hidden_is_an_error(home: Path, path: str) -> None:
    with pytest.raises(ConfigError):
        found(home, hide=(path,))


def test_show_brings_back_a_path_and_what_is_below_it(home: Path) -> None:
    for name in (".netrc", ".config/gh/x", ".config/gcloud/x"):
        write(home / name)
    assert sorted(found(home, show=("~/.config",))) == ["home/me/.netrc"]
    assert sorted(found(home, show=("~/.netrc", "~/.config/gh"))) == ["home/me/.config/gcloud"]


def test_show_of_a_link_shows_where_it_leads(home: Path) -> None:
    write(home / "dotfiles/netrc")
    (home / ".netrc").symlink_to("dotfiles/netrc")
    assert found(home, show=("~/.netrc",)) == {}


def test_show_of_a_part_of_a_hidden_folder_keeps_that_part(home: Path) -> None:
    write(home / ".aws/config")
    write(home / "private/open/x")
    hidden = found(home, hide=("~/private",), show=("~/.aws/config", "~/private/open"))
    assert hidden["home/me/.aws"].keep == ("config",)
    assert hidden["home/me/private"].keep == ("open",)


@pytest.mark.parametrize(
    ("path", "says"), [("~/.bashrc", "is not hidden"), ("~/.npmrc", "does not exist"), ("~/notes", "hidden and shown")]
)
def test_show_of_what_is_not_hidden_is_an_error(home: Path, path: str, says: str) -> None:
    write(home / ".bashrc")
    write(home / "notes")
    with pytest.raises(ConfigError, match=says):
        found(home, hide=("~/notes",), show=(path,))


def test_what_was_asked_to_be_hidden_stays_hidden_below_what_is_shown(home: Path) -> None:
    write(home / ".config/gh/x")
    assert sorted(found(home, hide=("~/.config/gh",), show=("~/.config",))) == ["home/me/.config/gh"]


def test_files_of_exeat_cannot_be_shown(home: Path) -> None:
    state = write(home / ".local/state/exeat/x").parent
    assert sorted(found(home, own=(str(state),))) == ["home/me/.local/state/exeat"]
    with pytest.raises(ConfigError, match="is not hidden"):
        found(home, own=(str(state),), show=(str(state),))


def test_passwords_of_the_system_are_hidden_from_root(home: Path) -> None:
    if not Path("/etc/shadow").exists():
        pytest.skip("no /etc/shadow here")
    for uid, is_hidden in ((0, True), (ORDINARY, False)):
        paths = {each.path for each in hidden_paths(str(home), {}, uid, FilePolicy())}
        assert ("/etc/shadow" in paths) is is_hidden
