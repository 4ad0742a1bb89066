"""Files, the allowlist variable and host mappings: read whole or refused whole, with the place of the fault."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from exeat.errors import ConfigError
from exeat.policy import Source, parse_document, parse_host_mapping
from exeat.policy.document import parse_allowlist

TOML = """\
# a comment with "quotes" and [brackets]
allow = [
  "good.test", # "not.a.rule"
  'literal.test:22',
  \"\"\"three.test\"\"\", '''four.test''',
  "\\u0065scaped.test",
]
deny = ["evil.test", "*.com"]

[hosts]
"db.test" = "10.0.0.5"
plain = ["::1", "[::2]", '10.0.0.1']

[limits]
idle_s = 30
ratio = 1.5
max_upload = "10MB"
strict = true
"""

JSON = """\
{
  "allow": ["good.test", "b.test:22",
            "c.test"],
  "deny": [
    "evil.test"
  ],
  "hosts": {"db.test": "10.0.0.5", "plain": ["::1"]},
  "limits": {"idle_s": 30}
}
"""


def test_toml_rules_know_their_line_and_column() -> None:
    """Every rule points at the first character inside its quotes, for each kind of TOML string."""
    document = parse_document(TOML, "policy.toml")
    assert [(rule.text, str(rule.source)) for rule in document.rules] == [
        ("good.test", "policy.toml:3:4"),
        ("literal.test:22", "policy.toml:4:4"),
        ("three.test", "policy.toml:5:6"),
        ("four.test", "policy.toml:5:24"),
        ("escaped.test", "policy.toml:6:4"),
        ("!evil.test", "policy.toml:8:10"),
        ("!*.com", "policy.toml:8:23"),
    ]


def test_toml_hosts_and_limits() -> None:
    """Mappings take one address or a list; limits are passed on with their place."""
    document = parse_document(TOML, "policy.toml")
    assert document.hosts == (
        ("db.test", (ip_address("10.0.0.5"),)),
        ("plain", (ip_address("::1"), ip_address("::2"), ip_address("10.0.0.1"))),
    )
    assert {key: (value, str(source)) for key, (value, source) in document.limits.items()} == {
        "idle_s": (30, "policy.toml:15:10"),
        "ratio": (1.5, "policy.toml:16:9"),
        "max_upload": ("10MB", "policy.toml:17:15"),
        "strict": (True, "policy.toml:18:10"),
    }


def test_json_means_the_same_and_knows_its_places() -> None:
    """JSON is chosen by the file's name."""
    document = parse_document(JSON, "policy.JSON")
    assert [(rule.text, str(rule.source)) for rule in document.rules] == [
        ("good.test", "policy.JSON:2:14"),
        ("b.test:22", "policy.JSON:2:27"),
        ("c.test", "policy.JSON:3:14"),
        ("!evil.test", "policy.JSON:5:6"),
    ]
    assert document.hosts == (("db.test", (ip_address("10.0.0.5"),)), ("plain", (ip_address("::1"),)))
    assert str(document.limits["idle_s"][1]) == "policy.JSON:8:24"


@pytest.mark.parametrize(
    "text", ["", "\n", "# nothing\n", "allow = []", "allow = []\ndeny = []\n[hosts]\n[limits]\n", "allow = [\n]\n"]
)
def test_empty_file_is_no_rules(text: str) -> None:
    """An empty file is valid and allows nothing."""
    document = parse_document(text, "p.toml")
    assert (document.rules, document.hosts, document.limits) == ((), (), {})


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_numbers_survive_windows_line_ends(newline: str) -> None:
    """A carriage return is no column of the next line."""
    text = newline.join(["# x", 'allow = [ "a.test",', ' "b.test" ]', ""])
    assert [str(rule.source) for rule in parse_document(text, "p.toml").rules] == ["p.toml:2:12", "p.toml:3:3"]


@pytest.mark.parametrize("mode", ["needed", "all", "none"])
def test_intercept_is_one_of_three_words(mode: str) -> None:
    """With its place; None if the file does not say."""
    found = parse_document(f'allow = []\nintercept = "{mode}"\n', "p.toml").intercept
    assert found is not None
    assert (found[0], str(found[1])) == (mode, "p.toml:2:14")
    assert parse_document("allow = []", "p.toml").intercept is None


def test_secrets_are_passed_on_with_their_places() -> None:
    """They are read elsewhere: keys, values, elements, characters. What is not exact is never past the literal."""
    text = '[secrets.A]\nvalue = "hunter2"\nhosts = ["a.test",\n "\\u0062.test"]\ninject = { header = "X" }\n'
    document = parse_document(text, "p.toml")
    table = document.secrets
    assert table is not None
    assert table.content == {"A": {"value": "hunter2", "hosts": ["a.test", "b.test"], "inject": {"header": "X"}}}
    for path, key, offset, place in (
        (("A",), True, 0, "1:10"),
        (("A", "value"), True, 0, "2:1"),
        (("A", "value"), False, 0, "2:10"),
        (("A", "hosts", 0), False, 2, "3:13"),
        (("A", "hosts", 1), False, 2, "4:3"),
        (("A", "inject", "header"), True, 0, "5:12"),
        (("A", "inject", "header"), False, 0, "5:22"),
        (("A", "missing"), False, 0, "1:10"),
        (("B",), False, 0, "1:2"),
    ):
        assert str(table.where(*path, key=key, offset=offset)) == f"p.toml:{place}"
    assert "hunter2" not in repr(document)
    assert parse_document("allow = []", "p.toml").secrets is None


BAD_TOML = [
    ('allow = ["good.test", "te$t.test"]', "p.toml:1:26", "'$'"),
    ('allow = [\n "good.test",\n "good.test:x"]', "p.toml:3:13", "not a port"),
    ("allow = ['good.test', 'a.test  what']", "p.toml:1:32", "'what'"),
    ('allow = ["\\u0061.test wh"]', "p.toml:1:11", "'wh'"),  # escapes: the literal, not the column
    ('allow = ["""\ngood.test what"""]', "p.toml:1:13", "'what'"),
    ('allow = ["good.test\\n*"]', "p.toml:1:11", "'\\n'"),
    ('allow = ["*.com"]', "p.toml:1:11", "registers"),
    ('allow = ["https://good.test/"]', "p.toml:1:11", "URL"),
    ('deny = ["!evil.test"]', "p.toml:1:10", "denies already"),
    ('deny = ["evil.test private"]', "p.toml:1:20", "private"),
    ('alow = ["good.test"]', "p.toml:1:1", "'alow'"),
    ("[allow]\nx = 1", "p.toml:1:2", "a table"),
    ("[[allow]]\nx = 1", "p.toml:1:3", "a table"),
    ("\n[extra]\nx = 1", "p.toml:2:2", "'extra'"),
    ('\n allow = "good.test"', "p.toml:2:11", "a string"),
    ("allow = 1", "p.toml:1:9", "a number"),
    ("allow = true", "p.toml:1:9", "true or false"),
    ("allow = 1979-05-27", "p.toml:1:9", "date"),
    ('allow = ["a.test", 7]', "p.toml:1:20", "element 2"),
    ('allow = ["a.test", ["b.test"]]', "p.toml:1:1", "element 2"),
    ('allow = ["a.test", {x = "b.test"}, "c"]', "p.toml:1:1", "element 2"),
    ("hosts = []", "p.toml:1:1", "a list"),
    ('[hosts]\n"1.2.3.4" = "1.2.3.4"', "p.toml:2:2", "address"),
    ('[hosts]\n"te$t" = "1.2.3.4"', "p.toml:2:2", "'$'"),
    ('[hosts]\na = "b.test"', "p.toml:2:6", "not an IP"),
    ('[hosts]\na = "127.1"', "p.toml:2:6", "ends in a number"),
    ('[hosts]\na = ["::1", "x"]', "p.toml:2:14", "not an IP"),
    ("[hosts]\na = []", "p.toml:2:1", "no address"),
    ("[hosts]\na = [1]", "p.toml:2:6", "element 1"),
    ("[hosts]\na = 1", "p.toml:2:5", "a number"),
    ('[hosts]\ndb.test = "1.2.3.4"', "p.toml:2:1", "a table"),
    ('hosts = {db.test = "1.2.3.4"}', "p.toml:1:10", "a table"),
    ('hosts.a = "x"', "p.toml:1:12", "not an IP"),
    ("[limits]\nx = []", "p.toml:2:1", "a list"),
    ("[limits]\nx = 1979-05-27", "p.toml:2:5", "date"),
    ("limits.x.y = 1", "p.toml:1:8", "a table"),
    ('intercept = "some"', "p.toml:1:14", "'some'"),
    ("intercept = true", "p.toml:1:13", "true or false"),
    ("\n[intercept]\nx = 1", "p.toml:2:2", "a table"),
    ("secrets = 1", "p.toml:1:11", "a number"),
    ("[[secrets]]\nx = 1", "p.toml:1:3", "a list"),
    ('allow = ["good.test]', "p.toml:1:21", "not valid TOML"),
    ("allow = [", "p.toml:1:10", "not valid TOML"),
    ("allow = []\nallow = []", "p.toml:2:11", "not valid TOML"),
    ("a b = 1", "p.toml:1:3", "not valid TOML"),
    ("x = " + "[" * 100_000, "p.toml:1", "not valid TOML"),
    ("limits.x = " + "9" * 5000, "p.toml:1", "not valid TOML"),
]

BAD_JSON = [
    ('{"allow": ["good.test"],\n "allow": []}', "p.json:2:3", "twice"),
    ('{"hosts": {"a": "::1",\n "a": "::2"}}', "p.json:2:3", "twice"),
    ('{"deny": [], "\\u0064eny": []}', "p.json:1", "twice"),
    ('{"allow": [{"a": 1, "a": 2}]}', "p.json:1:22", "twice"),
    ('{"allow": ["ok.test", "te$t"]}', "p.json:1:26", "'$'"),
    ('{"allow": ["ok.test", null]}', "p.json:1:23", "null"),
    ('{"allow": {"a": 1}}', "p.json:1:3", "a table"),
    ('{"x": 1}', "p.json:1:3", "'x'"),
    ('{"hosts": {"a": null}}', "p.json:1:17", "null"),
    ('{"limits": {"a": null}}', "p.json:1:18", "null"),
    ('{"secrets": {"A": {"inject": {"header": "x",\n "header": "y"}}}}', "p.json:2:3", "twice"),
    ('{"secrets": null}', "p.json:1:13", "null"),
    ('{"allow": [NaN]}', "p.json:1", "NaN"),
    ("[]", "p.json:1", "a list"),
    ("null", "p.json:1", "null"),
    ("", "p.json:1:1", "not valid JSON"),
    ('{"allow": ["a"],}', "p.json:1:16|p.json:1:17", "not valid JSON"),  # the comma, or what follows: by Python
    ('{"allow": ["a\nb"]}', "p.json:1:14", "not valid JSON"),
    ('\ufeff{"allow": []}', "p.json:1:1", "not valid JSON"),
    ("[" * 100_000, "p.json:1", "not valid JSON"),
]


@pytest.mark.parametrize(("text", "where", "says"), BAD_TOML, ids=lambda value: ascii(value[:40]))
def test_bad_toml_is_refused_at_its_place(text: str, where: str, says: str) -> None:
    """One bad item refuses the file, and the error says where and what."""
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "p.toml")
    assert caught.value.where == where
    assert says in caught.value.public


@pytest.mark.parametrize(("text", "where", "says"), BAD_JSON, ids=lambda value: ascii(value[:40]))
def test_bad_json_is_refused_at_its_place(text: str, where: str, says: str) -> None:
    """Also what many JSON parsers let pass: the same key twice (catalogue row J4), NaN, a byte order mark."""
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "p.json")
    assert caught.value.where in where.split("|")
    assert says in caught.value.public


def test_huge_document_is_refused_before_parsing() -> None:
    """Over 8 MiB there is no policy, only an attempt to keep us busy."""
    for name in ("p.toml", "p.json"):
        with pytest.raises(ConfigError, match="8 MiB"):
            parse_document("#" * (8 * 1024 * 1024 + 1), name)


def test_allowlist_variable() -> None:
    """Commas separate rules; spaces round them and empty items do not matter; sources count items."""
    rules = parse_allowlist("good.test:443, *.wild.test,,10.0.0.1:22 private,")
    assert [(rule.text, str(rule.source)) for rule in rules] == [
        ("good.test:443", "PROXY_ALLOWLIST item 1"),
        ("*.wild.test", "PROXY_ALLOWLIST item 2"),
        ("10.0.0.1:22 private", "PROXY_ALLOWLIST item 4"),
    ]


@pytest.mark.parametrize("text", ["", " ", ",", " , ,"])
def test_empty_allowlist_is_no_rules(text: str) -> None:
    """Nothing listed, nothing allowed."""
    assert parse_allowlist(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "good.test,*\nevil.test",
        "good.test\n",
        "\ngood.test",
        "good.test\r",
        "a.test\0",
        "a.test,\tb.test",
        "a\u2028.test",
    ],
)
def test_allowlist_with_a_control_character_is_refused_whole(text: str) -> None:
    """Part of an injected value is still an injected value (catalogue row J4)."""
    with pytest.raises(ConfigError) as caught:
        parse_allowlist(text, "EXEAT_ALLOW")
    assert caught.value.where.startswith("EXEAT_ALLOW, character ")


@pytest.mark.parametrize("text", ["good.test,*", "good.test,ev il", "*.com", "good.test;evil.test", "x" * (9 << 20)])
def test_allowlist_with_one_bad_rule_is_refused_whole(text: str) -> None:
    """No half of a list is ever in force."""
    with pytest.raises(ConfigError):
        parse_allowlist(text)


@pytest.mark.parametrize(
    ("text", "name", "ip"),
    [
        ("db.test:10.0.0.5", "db.test", "10.0.0.5"),
        ("DB.test.:10.0.0.5", "db.test", "10.0.0.5"),
        ("db.test:::1", "db.test", "::1"),
        ("db.test:[::1]", "db.test", "::1"),
        ("db.test:2001:db8::1", "db.test", "2001:db8::1"),
        ("db.test:::ffff:10.0.0.1", "db.test", "10.0.0.1"),
        ("bücher.test:1.2.3.4", "xn--bcher-kva.test", "1.2.3.4"),
    ],
)
def test_host_mapping(text: str, name: str, ip: str) -> None:
    """NAME:ADDR with every way of writing the address."""
    assert parse_host_mapping(text, Source("--add-host", item=1)) == (name, (ip_address(ip),))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "db.test",
        "db.test:",
        ":1.2.3.4",
        "db.test:other.test",
        "db.test:127.1",
        "1.2.3.4:1.2.3.4",
        "db.test:[1.2.3.4]",
        "*.test:1.2.3.4",
        "db.test:1.2.3.4:80",
        "db.test:::1%eth0",
        "db test:1.2.3.4",
        "db.test: 1.2.3.4",
        "a:::1\n",
    ],
)
def test_bad_host_mapping_is_refused(text: str) -> None:
    """A mapping is a name and an address, and nothing that could be taken for something else."""
    with pytest.raises(ConfigError) as caught:
        parse_host_mapping(text, Source("--add-host", item=1))
    assert caught.value.where.startswith("--add-host #1")
