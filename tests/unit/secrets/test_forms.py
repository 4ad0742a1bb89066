"""The forms of a value: those that other people's encoders make must be among ours."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode, urlsafe_b64encode
from hashlib import sha512
from urllib.parse import parse_qsl, quote, quote_plus, unquote_to_bytes, urlencode
from xml.etree import ElementTree as ET
from xml.sax import saxutils

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exeat.secrets.stream.forms import escape_for, percent_encoded, reflected_forms
from exeat.secrets.stream.replace import StreamReplacer
from tests.support.examples import examples
from tests.unit.wire.mutation import cut, cut_points

values = st.binary(min_size=8, max_size=60)
tricky = st.sampled_from("aZ09-._~+/=%&<>\"'\\ \n\t\r\x7f!*()#?;`\u00e9\u20ac\u2028\U0001f511")
texts = (st.text(tricky, max_size=40) | st.text(st.characters(codec="utf-8"), max_size=40)).filter(
    lambda text: len(text.encode()) >= 8
)
TOKEN = b"sk-live_4eC39HqLyjWDarjtT1zdp7dc"


# Bytes without a pattern: of zeros, a form could be found one place too early.
scrambled = st.integers(0, 2**32).map(lambda seed: sha512(seed.to_bytes(5, "big")).digest())


@given(scrambled, st.integers(8, 50), st.integers(0, 7), st.integers(0, 7), cut_points, st.booleans())
def test_base64_is_found_at_every_offset(
    source: bytes, size: int, before: int, after: int, cuts: list[int], is_url_safe: bool
) -> None:
    """Whatever stands around a value, all characters that tell of it alone are taken out, and no others."""
    value = source[7 : 7 + size]
    encode = urlsafe_b64encode if is_url_safe else b64encode
    encoded = encode(source[7 - before : 7 + size + after])
    stream = StreamReplacer(dict.fromkeys(reflected_forms(value), b"\0"))
    output = b"".join([stream.feed(piece) for piece in cut(encoded, cuts)]) + stream.finish()
    # A character holds six bits: from the first that begins within the value to the last that ends within it.
    first, last = -(-8 * before // 6), 8 * (before + size) // 6
    assert output == encoded[:first] + b"\0" + encoded[last:]


def test_base64_of_a_token_in_basic_credentials() -> None:
    for user in ("", "u", "us", "user", "x-access-token"):
        encoded = b64encode(user.encode() + b":" + TOKEN)
        assert sum(form in encoded for form in reflected_forms(TOKEN)) == 1


@pytest.mark.parametrize("plus", ["+", "%2B", "%2b", "\\u002B", "\\u002b"])
@pytest.mark.parametrize("slash", ["/", "%2F", "%2f", "\\/", "\\u002F"])
def test_base64_that_was_escaped_in_its_turn(plus: str, slash: str) -> None:
    value = b"\xfb\xff\xfe\xfb\xff\xbf~~"
    encoded = b64encode(value + b"\0").decode()[:10]
    assert "+" in encoded
    assert "/" in encoded
    form = encoded.replace("+", plus).replace("/", slash).encode()
    assert any(each.startswith(form) for each in reflected_forms(value))


@given(values)
def test_the_value_itself_and_hex(value: bytes) -> None:
    for form in (value, value.hex().encode(), value.hex().upper().encode()):
        assert form in reflected_forms(value)


@pytest.mark.parametrize("form", reflected_forms(TOKEN))
@given(st.binary(max_size=9), st.binary(max_size=9), cut_points)
@settings(max_examples=examples(20))
def test_every_form_is_taken_out_of_any_context(form: bytes, before: bytes, after: bytes, cuts: list[int]) -> None:
    """It is found wherever the stream is cut, and what stands around it stays."""
    stream = StreamReplacer(dict.fromkeys(reflected_forms(TOKEN), b"<gone>"))
    pieces = cut(before + form + after, cuts)
    output = b"".join([stream.feed(piece) for piece in pieces]) + stream.finish()
    assert output == before + b"<gone>" + after


def lower_hex(encoded: str) -> str:
    return re.sub("%..", lambda found: found[0].lower(), encoded)


@given(values | texts.map(str.encode))
def test_percent_encoded_forms(value: bytes) -> None:
    made = [quote(value), quote(value, safe=""), quote_plus(value), urlencode({"": value})[1:]]
    made.append(quote(value, safe="!'()*"))  # encodeURIComponent
    made.append(quote(value, safe="!'()*;/?:@&=+$,#"))  # encodeURI
    made.append(quote_plus(value, safe="*").replace("~", "%7E"))  # a form in a browser
    made.append("".join([f"%{each:02X}" for each in value]))
    forms = reflected_forms(value)
    for encoded in made:
        assert encoded.encode() in forms
        assert lower_hex(encoded).encode() in forms


def upper_hex(encoded: str) -> str:
    """In \\uXXXX alone: a backslash before the u may be the second of two."""
    return re.sub(r"\\(u....|.)", lambda found: "\\" + found[1][0] + found[1][1:].upper(), encoded)


@given(texts)
@example("pass\\uabcd/word")
def test_json_forms(text: str) -> None:
    plain = json.dumps(text, ensure_ascii=False)[1:-1]
    made = [plain, json.dumps(text)[1:-1], utf16_escape(text)]
    # As Go writes it, so that it may stand in HTML.
    made.append(re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", plain))
    # As .NET does for the same reason.
    numbered = plain.replace('\\"', '"')
    made.append(re.sub("[^\x00-\x7e]|[<>&'\"+`]", lambda found: utf16_escape(found[0]), numbered))
    forms = reflected_forms(text.encode())
    for encoded in made:
        assert encoded.encode() in forms
        assert upper_hex(encoded).encode() in forms
        assert encoded.replace("/", "\\/").encode() in forms


def utf16_escape(text: str) -> str:
    return re.sub("(....)", r"\\u\1", text.encode("utf-16-be").hex())


@given(texts)
def test_markup_forms(text: str) -> None:
    forms = reflected_forms(text.encode())
    made = [html.escape(text), html.escape(text, quote=False), saxutils.escape(text)]
    made.append(html.escape(text).replace("&#x27;", "&#39;"))
    made.append(html.escape(text).replace("&#x27;", "&apos;"))
    made.append(html.escape(text).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"))
    for encoded in made:
        assert encoded.encode() in forms
        assert encoded.encode("ascii", "xmlcharrefreplace") in forms
    element = ET.Element("a", {"b": "x" + text})
    if not re.search("[\x00-\x1f]", text):  # white space is written differently by every version
        assert any(form in ET.tostring(element) for form in forms)


def test_a_header_that_a_server_read_as_latin_1() -> None:
    value = "pässwörd".encode()
    misread = value.decode("latin-1")
    forms = reflected_forms(value)
    assert misread.encode() in forms
    assert json.dumps(misread)[1:-1].encode() in forms


@given(st.binary(max_size=7))
def test_a_short_value_has_no_encoded_forms(value: bytes) -> None:
    assert reflected_forms(value) == ((value,) if value else ())


@given(values)
def test_forms_are_distinct_long_enough_and_begin_with_the_value(value: bytes) -> None:
    forms = reflected_forms(value)
    assert forms[0] == value
    assert len(set(forms)) == len(forms)
    assert min(map(len, forms)) >= 8


BASE64 = "c2Vj/mV0L+ZhbHVlLTAxMjM0NTY3ODk="
NUMBERS = ("\\u%04x", "\\u%04X", "%%%02X", "%%%02x", "&#%d;", "&#x%X;", "&#x%x;")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("chosen", ["=", "/", "+", "=/", "=+", "/+", "=/+"])
def test_any_choice_of_special_characters_may_be_escaped(number: str, chosen: str) -> None:
    form = "".join([number % ord(each) if each in chosen else each for each in BASE64])
    forms = reflected_forms(BASE64.encode())
    assert form.encode() in forms
    if "\\u" in number:
        assert form.replace("/", "\\/").encode() in forms


@given(st.sets(st.sampled_from("!#$&'()*+,/:;=?@[]~"), min_size=1, max_size=5), st.data())
def test_any_choice_of_reserved_characters_may_be_percent_encoded(present: set[str], data: st.DataObject) -> None:
    chosen = data.draw(st.sets(st.sampled_from(sorted(present))))
    text = "".join([f"key{each}" for each in sorted(present)]) + "0123456"
    for number in ("%%%02X", "%%%02x"):
        form = "".join([number % ord(each) if each in chosen else each for each in text])
        assert form.encode() in reflected_forms(text.encode())


ENCODED = {
    "Gson": ({"=": "\\u003d", "'": "\\u0027", "&": "\\u0026", "<": "\\u003c", ">": "\\u003e", '"': '\\"'}),
    "PHP's JSON, for HTML": (
        {"'": "\\u0027", "&": "\\u0026", "<": "\\u003C", ">": "\\u003E", '"': "\\u0022", "/": "\\/"}
    ),
    "serialize-javascript": {"<": "\\u003C", ">": "\\u003E", "/": "\\u002F", '"': '\\"'},
    "PHP's HTML": {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#039;"},
    "Handlebars": (
        {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;", "`": "&#x60;", "=": "&#x3D;"}
    ),
    "Rack": {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;", "/": "&#x2F;"},
    "all as numbers": {each: f"&#x{ord(each):X};" for each in "&<>\"'`=/+ "},
}


@pytest.mark.parametrize("table", ENCODED.values(), ids=ENCODED.keys())
def test_a_value_with_every_special_character_in_it(table: dict[str, str]) -> None:
    """There are too many for every choice of them: then it is what encoders are known to do."""
    text = "p<a>s&s'w\"o`r=d/0+1 2"
    forms = reflected_forms(text.encode())
    assert "".join([table.get(each, each) for each in text]).encode() in forms
    assert len(forms) <= 200


@pytest.mark.parametrize("style", ["&#%d;", "&#x%X;", "&#x%x;"])
def test_base64_in_markup(style: str) -> None:
    encoded = b64encode(b"\xfb\xff\xfe\xfb\xff\xbf~~\0").decode()[:10]
    for chosen in ("+", "/", "+/"):
        form = "".join([style % ord(each) if each in chosen else each for each in encoded]).encode()
        assert any(each.startswith(form) for each in reflected_forms(b"\xfb\xff\xfe\xfb\xff\xbf~~"))


@given(st.binary(max_size=300) | st.text(tricky, max_size=200).map(str.encode))
def test_there_are_never_too_many_forms(value: bytes) -> None:
    assert len(reflected_forms(value)) <= 200


def test_the_forms_of_a_long_value_are_bounded_in_bytes() -> None:
    forms = reflected_forms(b"{\"k\": 'a/b+c=<d>&e~f'}, " * 2_900)
    assert 20 <= len(forms) <= 200
    assert sum(map(len, forms)) <= 8 << 20


def test_a_plain_token_has_few_forms() -> None:
    """Every form costs time in every response: those that are the same as others must not be there twice."""
    assert len(reflected_forms(TOKEN)) == 10


JSON = [b"application/json", b"Application/JSON; charset=utf-8", b"application/vnd.api+json", b"application/x-ndjson"]
XML = [b"application/xml", b"text/xml;charset=utf-8", b"application/soap+xml"]
OTHERS = [b"", b"text/plain", b"multipart/form-data; boundary=x", b"application/octet-stream", b"application/jsonx"]


@given(texts, st.sampled_from(JSON))
def test_a_json_reader_gets_the_value(text: str, content_type: bytes) -> None:
    body = b'{"a": "x' + escape_for(content_type, text.encode()) + b'y"}'
    assert json.loads(body) == {"a": f"x{text}y"}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from("\t\r\n<>&\"'")))
def test_an_xml_reader_gets_the_value(text: str) -> None:
    text = re.sub("[\ufffe\uffff]", "", text)  # not allowed in XML in any form
    for content_type in XML:
        value = escape_for(content_type, text.encode())
        read = ET.fromstring(b'<a b="' + value + b"\" c='" + value + b"'>" + value + b"</a>")
        assert (read.get("b"), read.get("c"), read.text or "") == (text, text, text)


@given(st.binary(max_size=60))
def test_a_form_reader_gets_the_value(value: bytes) -> None:
    encoded = escape_for(b"application/x-www-form-urlencoded; charset=utf-8", value)
    assert encoded == percent_encoded(value)
    assert unquote_to_bytes(encoded) == value
    read = parse_qsl(f"a={encoded.decode()}&b=1", keep_blank_values=True, encoding="latin-1")
    assert read == [("a", value.decode("latin-1")), ("b", "1")]


@given(st.binary(max_size=60))
def test_percent_encoding_leaves_unreserved_characters_only(value: bytes) -> None:
    assert percent_encoded(value).decode() == quote(value, safe="")


@given(st.binary(max_size=60), st.sampled_from(OTHERS))
def test_elsewhere_a_value_stands_as_it_is(value: bytes, content_type: bytes) -> None:
    assert escape_for(content_type, value) == value


def test_a_value_that_is_no_text_keeps_its_bytes() -> None:
    assert escape_for(b"application/json", b'\xff"\xc3\x28\n') == b'\xff\\"\xc3\x28\\n'
    assert escape_for(b"text/xml", b"\xff<\xc3\x28") == b"\xff&lt;\xc3\x28"
