"""What secrets there are: read whole or refused whole, with the place of the fault, and never with a value."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exeat.errors import ConfigError
from exeat.policy import Source, parse_document
from exeat.secrets.model import DEFAULT_WHERE, Injection, ValueSource, Where
from exeat.secrets.setup.config import VARIABLE, parse_secrets, parse_secrets_table, value_fault
from tests.unit.secrets.configs import HOSTS, VALUE, read, refused

TOML = f"""\
# comment
[PLAIN]
value = "{VALUE}"
hosts = ["api.good.test", "*.wild.test:8443 private", "10.0.0.5", "[::1]:9000"]

[FROM_ENV]
env = "SOME_VARIABLE"
hosts = ["api.good.test"]
placeholder = "placeholder-of-env"
where = ["body", "path"]
on_wrong_host = "pass"

[FROM_FILE]
file = "/run/secrets/token"
hosts = ["api.good.test"]
shape = 40

[FROM_COMMAND]
command = ["gh", "auth", "token"]
timeout_s = 5
refresh_s = 3600
hosts = ["api.good.test", "api.good.test:443"]
inject = {{ header = "Authorization", format = "Bearer {{value}}" }}
where = []
"""


# What is read


def test_every_setting_is_read() -> None:
    """The four sources, hosts with port 443 unless given, and what has a default."""
    found = read(TOML)
    assert list(found) == ["PLAIN", "FROM_ENV", "FROM_FILE", "FROM_COMMAND"]
    plain, env, file, command = found.values()
    assert plain.source == ValueSource(value=VALUE)
    assert [rule.text for rule in plain.hosts] == [
        "api.good.test:443",
        "*.wild.test:8443 private",
        "10.0.0.5:443",
        "[::1]:9000",
    ]
    assert [str(rule.source) for rule in plain.hosts] == ["s.toml:4:11", "s.toml:4:28", "s.toml:4:56", "s.toml:4:68"]
    assert (plain.where, plain.refuse_wrong_host, plain.inject, plain.placeholder) == (DEFAULT_WHERE, True, None, "")
    assert env.source == ValueSource(env="SOME_VARIABLE")
    assert (env.where, env.refuse_wrong_host) == (frozenset((Where.BODY, Where.PATH)), False)
    assert (env.placeholder, env.shape) == ("placeholder-of-env", "")
    assert (file.source, file.shape) == (ValueSource(file="/run/secrets/token"), "40")
    assert command.source == ValueSource(command=("gh", "auth", "token"), timeout_s=5, refresh_s=3600)
    assert [rule.text for rule in command.hosts] == ["api.good.test:443"]
    assert (command.inject, command.where) == (Injection("Authorization", "Bearer {value}"), frozenset())
    assert [str(spec.written) for spec in found.values()] == ["s.toml:2:2", "s.toml:6:2", "s.toml:13:2", "s.toml:18:2"]
    assert VALUE not in repr(found)


@pytest.mark.parametrize("name", ["s.json", "S.JSON", VARIABLE])
@pytest.mark.parametrize("inside", [False, True])
def test_json_means_the_same(name: str, inside: bool) -> None:
    """By the file's name, or because the variable says so; at the top or in a table `secrets`."""
    import tomllib

    data = tomllib.loads(TOML)
    text = json.dumps({"secrets": data} if inside else data, indent=1)
    found = read(text, name)
    for key, spec in read(TOML).items():
        assert (found[key].source, found[key].hosts, found[key].inject) == (spec.source, spec.hosts, spec.inject)
    line = text[: text.index('"FROM_FILE"')].count("\n") + 1
    assert str(found["FROM_FILE"].written) == f"{name}:{line}:{4 if inside else 3}"


def test_a_policy_holds_secrets_too() -> None:
    """`[secrets.NAME]`, with the places of that file."""
    text = f'allow = ["x.test"]\n[secrets.A]\nvalue = "{VALUE}"\nhosts = [\n "a.test",\n "b.test:1-9",\n]\n'
    table = parse_document(text, "p.toml").secrets
    assert table is not None
    (spec,) = parse_secrets_table(table.content, table.where)
    assert str(spec.written) == "p.toml:2:10"
    assert [(rule.text, str(rule.source)) for rule in spec.hosts] == [
        ("a.test:443", "p.toml:5:3"),
        ("b.test:1-9", "p.toml:6:3"),
    ]


def test_a_program_can_say_where_for_itself() -> None:
    """A table needs no file behind it."""
    (spec,) = parse_secrets_table(
        {"A": {"env": "B", "hosts": ["a.test"]}}, lambda *path, **_: Source("secrets=", item=1)
    )
    assert str(spec.written) == "secrets= item 1"


@pytest.mark.parametrize("text", ["", "# nothing\n", "[secrets]\n"])
def test_a_file_without_secrets_has_none(text: str) -> None:
    """Not an error: a generated file may be empty."""
    assert parse_secrets(text, "s.toml") == ()


@pytest.mark.parametrize("shape", ["sk-", "ghp_", "jwt", "uuid", "aws-key-id", "sk-ant-", 16, 4096])
def test_shapes(shape: str | int) -> None:
    """The shapes that are known."""
    text = json.dumps({"A": {"env": "B", "hosts": ["a.test"], "shape": shape}})
    assert read(text, "s.json")["A"].shape == str(shape)


def test_an_injected_format_can_be_the_value_alone() -> None:
    """A header such as X-Api-Key has nothing before its value."""
    text = '[A]\nenv = "B"\nhosts = ["a.test"]\ninject = { header = "X-Api-Key" }'
    assert read(text)["A"].inject == Injection("X-Api-Key", "{value}")


# What stands under [A], the place, a part of the sentence.
BAD = [
    # names and tables
    (f'["{VALUE}"]\nenv = "B"\n{HOSTS}', "1:3", "not a name"),
    (f'[1A]\nenv = "B"\n{HOSTS}', "1:2", "not a name"),
    (f'["A\\u0000"]\nenv = "B"\n{HOSTS}', "1", "not a name"),
    (f'[EXEAT_A]\nenv = "B"\n{HOSTS}', "1:2", "EXEAT_"),
    (f'A = "{VALUE}"', "1:6", "it is a string"),
    (f'A = ["{VALUE}"]', "1:1", "it is a list"),
    (f'[[A]]\nvalue = "{VALUE}"', "1:3", "it is a list"),
    (f'secrets = "{VALUE}"', "1:12", "it is a string"),
    (f'allow = []\n[secrets.A]\nvalue = "{VALUE}"\n{HOSTS}', "1:1", "'allow' stands next to"),
    (f'"{VALUE}" = 1\n[secrets.A]\nvalue = "{VALUE}"\n{HOSTS}', "1:2", "a key stands next to"),
    # keys
    (f'[A]\nvalue = "{VALUE}"\n{HOSTS}\nhost = "a.test"', "4:1", "'host' is not a setting"),
    (f'[A]\nvalue = "{VALUE}"\n{HOSTS}\n"{VALUE}" = "a.test"', "4:2", "a key is not a setting"),
    # the source
    (f"[A]\n{HOSTS}", "1:2", "it has no source for"),
    (f'[A]\nvalue = "{VALUE}"\n{HOSTS}\nenv = "B"', "4:1", "value and env are both"),
    (f'[A]\ncommand = ["x"]\nvalue = "{VALUE}"\n{HOSTS}', "2:1", "value and command are both"),
    (f"[A]\nvalue = 93939393\n{HOSTS}", "2:9", "value is a number"),
    (f'[A]\nvalue = ["{VALUE}"]\n{HOSTS}', "2:1", "value is a list"),
    (f'[A]\nvalue = {{ x = "{VALUE}" }}\n{HOSTS}', "2:1", "value is a table"),
    (f"[A]\nvalue = true\n{HOSTS}", "2:9", "value is true or false"),
    (f'[A]\nvalue = ""\n{HOSTS}', "2:10", "empty"),
    (f'[A]\nvalue = "{VALUE}\\n"\n{HOSTS}', "2:10", "control character at byte 23 of 23"),
    (f'[A]\nvalue = "a\\u0000{VALUE}"\n{HOSTS}', "2:10", "control character at byte 2"),
    (f'[A]\nvalue = "{VALUE}\\u007f"\n{HOSTS}', "2:10", "control character"),
    (f'[A]\nvalue = "{VALUE}\\t"\n{HOSTS}', "2:10", "control character"),
    (f'[A]\nvalue = """{VALUE}\nmore"""\n{HOSTS}', "2:12", "control character"),
    (f'[A]\nvalue = "{"x" * 65_537}"\n{HOSTS}', "2:10", "over 64 KiB"),
    (f'[A]\nenv = "{VALUE}"\n{HOSTS}', "2:8", "not the name of a variable"),
    (f'[A]\nenv = ""\n{HOSTS}', "2:8", "not the name of a variable"),
    (f"[A]\nenv = 1\n{HOSTS}", "2:7", "env is a number"),
    (f'[A]\nfile = ""\n{HOSTS}', "2:9", "not a path"),
    (f'[A]\nfile = "a\\u0000"\n{HOSTS}', "2:9", "not a path"),
    (f"[A]\nfile = []\n{HOSTS}", "2:1", "file is a list"),
    (f'[A]\ncommand = "gh auth token"\n{HOSTS}', "2:12", "command is a string"),
    (f"[A]\ncommand = []\n{HOSTS}", "2:1", "command is empty"),
    (f'[A]\ncommand = [""]\n{HOSTS}', "2:1", "command is empty"),
    (f'[A]\ncommand = ["gh", 1]\n{HOSTS}', "2:18", "element 2 of command is a number"),
    (f'[A]\ncommand = ["gh", "{VALUE}\\u0000"]\n{HOSTS}', "2:19", "element 2 of command"),
    (f'[A]\nvalue = "{VALUE}"\ntimeout_s = 1\n{HOSTS}', "3:1", "for a command"),
    (f'[A]\nenv = "B"\nrefresh_s = 1\n{HOSTS}', "3:1", "for a command"),
    (f'[A]\ncommand = ["x"]\ntimeout_s = 0\n{HOSTS}', "3:13", "out of range"),
    (f'[A]\ncommand = ["x"]\ntimeout_s = nan\n{HOSTS}', "3:13", "out of range"),
    (f'[A]\ncommand = ["x"]\nrefresh_s = inf\n{HOSTS}', "3:13", "out of range"),
    (f'[A]\ncommand = ["x"]\nrefresh_s = 0.5\n{HOSTS}', "3:13", "out of range"),
    (f'[A]\ncommand = ["x"]\nrefresh_s = true\n{HOSTS}', "3:13", "true or false"),
    (f'[A]\ncommand = ["x"]\nrefresh_s = "1"\n{HOSTS}', "3:14", "a string"),
    # hosts
    (f'[A]\nvalue = "{VALUE}"', "1:2", "no hosts"),
    ('[A]\nenv = "B"\nhosts = []', "3:1", "0 elements"),
    (f'[A]\nenv = "B"\nhosts = {["a.test"] * 101}', "3:1", "101 elements"),
    ('[A]\nenv = "B"\nhosts = "a.test"', "3:10", "hosts is a string"),
    ('[A]\nenv = "B"\nhosts = ["a.test", 7]', "3:20", "element 2 of hosts"),
    ('[A]\nenv = "B"\nhosts = ["a.test", ""]', "3:21", "empty"),
    ('[A]\nenv = "B"\nhosts = ["a.test", "  "]', "3:21", "empty"),
    ('[A]\nenv = "B"\nhosts = ["a.test", "te$t"]', "3:23", "'$'"),
    ('[A]\nenv = "B"\nhosts = ["a.test", "\\u0074e$t"]', "3:21", "'$'"),
    ('[A]\nenv = "B"\nhosts = ["a.test:x"]', "3:18", "not a port"),
    ('[A]\nenv = "B"\nhosts = ["a.test\\n"]', "3:11", "'\\n'"),
    ('[A]\nenv = "B"\nhosts = ["https://a.test/"]', "3:11", "URL"),
    (f'[A]\nenv = "B"\nhosts = ["{"a" * 401}"]', "3:11", "400 characters"),
    ('[A]\nenv = "B"\nhosts = [" !a.test"]', "3:12", "cannot list others"),
    ('[A]\nenv = "B"\nhosts = ["a.test private  methods=GET"]', "3:27", "'methods=GET'"),
    ('[A]\nenv = "B"\nhosts = ["a.test max_upload=1MB"]', "3:18", "'max_upload=1MB'"),
    ('[A]\nenv = "B"\nhosts = ["a.test no_intercept"]', "3:18", "'no_intercept'"),
    ('[A]\nenv = "B"\nhosts = ["a.test private private"]', "3:26", "twice"),
    ('[A]\nenv = "B"\nhosts = ["*.com force"]', "3:17", "'force'"),
    ('[A]\nenv = "B"\nhosts = ["*.com"]', "3:11", "registers a name under com"),
    ('[A]\nenv = "B"\nhosts = [".co.uk"]', "3:11", "registers a name under co.uk"),
    ('[A]\nenv = "B"\nhosts = ["*.github.io"]', "3:11", "registers a name under github.io"),
    ('[A]\nenv = "B"\nhosts = ["*"]', "3:11", "every host"),
    ('[A]\nenv = "B"\nhosts = ["0.0.0.0/0"]', "3:11", "anyone's addresses"),
    ('[A]\nenv = "B"\nhosts = ["[::/0]:443"]', "3:11", "anyone's addresses"),
    # placeholder and shape
    (f'[A]\nenv = "B"\n{HOSTS}\nplaceholder = "short-7"', "4:16", "placeholder cannot be used"),
    (f'[A]\nenv = "B"\n{HOSTS}\nplaceholder = "{VALUE}!"', "4:16", "placeholder cannot be used"),
    (f'[A]\nenv = "B"\n{HOSTS}\nplaceholder = "{"x" * 4097}"', "4:16", "placeholder cannot be used"),
    (f'[A]\nenv = "B"\n{HOSTS}\nplaceholder = ""', "4:16", "placeholder cannot be used"),
    (f'[A]\nenv = "B"\n{HOSTS}\nplaceholder = "newline-\\n"', "4:16", "placeholder cannot be used"),
    (f'[A]\nenv = "B"\n{HOSTS}\nplaceholder = 12345678', "4:15", "placeholder is a number"),
    (f'[A]\nenv = "B"\n{HOSTS}\nplaceholder = "12345678"\nshape = "jwt"', "5:1", "both given"),
    (f'[A]\nenv = "B"\n{HOSTS}\nshape = "{VALUE}"', "4:10", "no such shape"),
    (f'[A]\nenv = "B"\n{HOSTS}\nshape = 15', "4:9", "no such shape"),
    (f'[A]\nenv = "B"\n{HOSTS}\nshape = -40', "4:9", "no such shape"),
    (f'[A]\nenv = "B"\n{HOSTS}\nshape = true', "4:9", "true or false"),
    (f'[A]\nenv = "B"\n{HOSTS}\nshape = 40.0', "4:9", "a number"),
    # inject
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = "{VALUE}"', "4:11", "inject is a string"),
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = {{}}', "4:1", "no header"),
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = {{ format = "{{value}}" }}', "4:1", "no header"),
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = {{ header = "X", form = "y" }}', "4:26", "'form' is not"),
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = {{ header = 1 }}', "4:21", "inject.header is a number"),
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = {{ header = "X Y" }}', "4:22", "not the name of a header"),
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = {{ header = "" }}', "4:22", "not the name of a header"),
    (f'[A]\nenv = "B"\n{HOSTS}\ninject = {{ header = "X:" }}', "4:22", "not the name of a header"),
    (f'[A]\nenv = "B"\n{HOSTS}\n[A.inject]\nheader = "X"\nformat = "Bearer {VALUE}"', "6:11", "{value} exactly once"),
    (f'[A]\nenv = "B"\n{HOSTS}\n[A.inject]\nheader = "X"\nformat = "{{value}}{{value}}"', "6:11", "exactly once"),
    (f'[A]\nenv = "B"\n{HOSTS}\n[A.inject]\nheader = "X"\nformat = "{{value}}\\r\\nY: z"', "6:11", "not a header's"),
    (f'[A]\nenv = "B"\n{HOSTS}\n[A.inject]\nheader = "X"\nformat = " {{value}}"', "6:11", "not a header's"),
    (f'[A]\nenv = "B"\n{HOSTS}\n[A.inject]\nheader = "X"\nformat = "\u00fc {{value}}"', "6:11", "not a header's"),
    # where and the rest
    (f'[A]\nenv = "B"\n{HOSTS}\nwhere = "body"', "4:10", "where is a string"),
    (f'[A]\nenv = "B"\n{HOSTS}\nwhere = ["body", "cookies"]', "4:19", "element 2 of where is not a part"),
    (f'[A]\nenv = "B"\n{HOSTS}\nwhere = ["{VALUE}"]', "4:11", "element 1 of where is not a part"),
    (f'[A]\nenv = "B"\n{HOSTS}\nwhere = []', "4:1", "never be used"),
    (f'[A]\nenv = "B"\n{HOSTS}\non_wrong_host = "{VALUE}"', "4:18", "neither"),
    (f'[A]\nenv = "B"\n{HOSTS}\non_wrong_host = true', "4:17", "true or false"),
    (f'[A]\nenv = "B"\n{HOSTS}\naws_key_id = "A"', "4:15", "another secret"),
    (f'[A]\nenv = "B"\n{HOSTS}\naws_key_id = "{VALUE}"', "4:15", "another secret"),
    (f'[A]\nenv = "B"\n{HOSTS}\naws_key_id = 1', "4:14", "a number"),
    (f'[A]\nenv = "B"\n{HOSTS}\naws_key_id = "NONE"', "1:2", "is not a secret"),
    # the file
    (f'[A]\nvalue = "{VALUE}"\n{HOSTS}\n[A]\nenv = "B"', "4:3", "not valid TOML"),
    (f'[A]\nvalue = "{VALUE}"\nvalue = "{VALUE}"', "3:33", "not valid TOML"),
    (f'[A]\nvalue = "{VALUE}', "2:32", "not valid TOML"),
    (f"[A]\nvalue = {VALUE}", "2:9", "not valid TOML"),
    (f'[A]\nvalue = "{VALUE}" {VALUE}', "2:34", "not valid TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "says"), BAD, ids=lambda value: ascii(value[:60]))
def test_bad_toml_is_refused_at_its_place(text: str, place: str, says: str) -> None:
    """One fault refuses the file; the error has its place and not the value."""
    error = refused(lambda: read(text))
    assert says in error.public
    assert error.where == f"s.toml:{place}"


BAD_JSON = [
    (f'{{"A": {{"value": "{VALUE}",\n "value": "{VALUE}"}}}}', "2:3", "twice"),
    (f'{{"A": {{"value": "{VALUE}"}},\n "A": {{}}}}', "2:3", "'A' is given twice"),
    (f'{{"A": {{"env": "B", "inject": {{"header": "X",\n "header": "{VALUE}"}}}}}}', "2:3", "twice"),
    (f'{{"A": {{"value": "{VALUE}", "hosts": null}}}}', "1:52", "hosts is null"),
    ('{"A": {"value": "\\ud800", "hosts": ["a.test"]}}', "1:18", "not valid text"),
    ('{"A": {"command": ["x", "\\ud800"], "hosts": ["a.test"]}}', "1:26", "element 2 of command"),
    ('{"A": {"file": "\\ud800", "hosts": ["a.test"]}}', "1:17", "not a path"),
    (f'{{"A": {{"value": {VALUE}}}}}', "1:17", "not valid JSON"),
    (f'{{"A": {{"value": "{VALUE}}}}}', "1:17", "not valid JSON"),
    (f'{{"A": {{"value": "{VALUE}\\x"}}}}', "1:40", "not valid JSON"),
    (f'["{VALUE}"]', "1", "the file holds a list"),
    (f'"{VALUE}"', "1", "the file holds a string"),
    ("", "1:1", "not valid JSON"),
]


@pytest.mark.parametrize("name", ["s.json", VARIABLE])
@pytest.mark.parametrize(("text", "place", "says"), BAD_JSON, ids=lambda value: ascii(value[:60]))
def test_bad_json_is_refused_at_its_place(text: str, place: str, says: str, name: str) -> None:
    """The same for JSON, and for the variable."""
    error = refused(lambda: read(text, name))
    assert says in error.public
    assert error.where == f"{name}:{place}"


@pytest.mark.parametrize(
    "header",
    [
        "Host", "content-length", "Transfer-Encoding", "CONNECTION", "Keep-Alive", "TE", "Trailer", "Upgrade", "Expect",
        "Proxy-Authorization", "Proxy-Connection", "HTTP2-Settings", "Sec-WebSocket-Key", "Content-Encoding",
        "Accept-Encoding", "Via",
    ],
)  # fmt: skip
def test_headers_that_frame_or_route_cannot_be_set(header: str) -> None:
    """An injected header must not change where a message goes or ends."""
    text = f'[A]\nvalue = "{VALUE}"\n{HOSTS}\n[A.inject]\nheader = "{header}"\nformat = "{{value}}"'
    error = refused(lambda: read(text))
    assert (error.where, "cannot be set" in error.public) == ("s.toml:5:11", True)


def test_too_many_secrets() -> None:
    """A bound on what is compared with everything else."""
    data = {f"A{i}": {"env": "B", "hosts": ["a.test"]} for i in range(501)}
    assert "more than 500" in refused(lambda: read(json.dumps(data), "s.json")).public


PIECES = [VALUE[i : i + 6] for i in range(len(VALUE) - 5)]


@given(
    cut=st.integers(0, len(TOML)), junk=st.sampled_from(['"', "'", "\\", "\n", "=", "[", "]", "{", ".", "\0", "ü", ""])
)
@example(cut=TOML.index(VALUE), junk='"')
@example(cut=TOML.index(VALUE) + 5, junk='"')
def test_no_damage_to_a_file_brings_the_value_out(cut: int, junk: str) -> None:
    """Whatever one slip does to a file: the error has no piece of the value, in TOML or JSON."""
    import tomllib

    as_json = json.dumps(tomllib.loads(TOML))
    for text, name in ((TOML, "s.toml"), (as_json, "s.json")):
        at = min(cut, len(text))
        for damaged in (text[:at] + junk + text[at:], text[:at] + junk + text[at + 1 :], text[:at] + junk):
            try:
                read(damaged, name)
            except ConfigError as error:
                shown = f"{error} {error!r}"
                assert not any(piece in shown for piece in PIECES)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (b"x", True),
        (b"with space", True),
        (b" x", False),
        (b"x ", False),
        (b" ", False),
        ("\u00fc\u20ac".encode(), True),
        (b"\xff\x80", True),
        (b"x" * 65_536, True),
        (b"", False),
        (b"x" * 65_537, False),
        *((b"a" + bytes([byte]), False) for byte in (*range(32), 127)),
    ],
)
def test_what_can_be_a_value(value: bytes, good: bool) -> None:
    """Control characters would end a header; an empty value would be found everywhere."""
    assert (value_fault(value) == "") == good
