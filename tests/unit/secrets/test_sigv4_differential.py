"""Signatures made again, against botocore, which signs the same requests with the real keys."""

from __future__ import annotations

import datetime
import hashlib
import string
from unittest import mock
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.secrets.request.sigv4 import parse_authorization, payload_hash, resign
from tests.support.examples import examples

NOW = datetime.datetime(2024, 2, 29, 23, 59, 58, tzinfo=datetime.UTC)
KEY_ID, SECRET_KEY = "AKIAREALREALREALREAL", "real/Secret+Key0123456789abcdefghijklmnop"
PLACEHOLDERS = ("AKIAPLACEHOLDER234567", "exeat_0123456789abcdefghijklmnopqrstuv")
EMPTY = hashlib.sha256(b"").hexdigest().encode()
Fields = list[tuple[bytes, bytes]]


def sign_with_botocore(
    keys: tuple[str, str],
    service: str,
    method: str,
    target: str,
    headers: list[tuple[str, str]],
    body: bytes = b"",
    token: str | None = None,
    **context: object,
) -> Fields:
    """Sign as botocore would, and give the header fields that it would send."""
    host = f"{service}.eu-west-1.amazonaws.test"
    request = AWSRequest(method=method, url=f"https://{host}{target}", data=body)
    for name, value in headers:
        request.headers.add_header(name, value)
    request.context.update(context)
    make = S3SigV4Auth if service.startswith("s3") else SigV4Auth
    signer = make(Credentials(*keys, token), service, "eu-west-1")
    with mock.patch("botocore.auth.get_current_datetime", return_value=NOW):
        signer.add_auth(request)
    sent = [(name.encode(), value.encode()) for name, value in request.headers.items()]
    return [(b"Host", host.encode()), *sent]


def field(headers: Fields, name: str) -> bytes:
    (value,) = [value for each, value in headers if each.lower() == name.lower().encode()]
    return value


def check_against_botocore(
    service: str,
    method: str = "GET",
    target: str = "/",
    headers: list[tuple[str, str]] | None = None,
    body: bytes = b"",
    token: str | None = None,
    **context: object,
) -> Fields:
    """Sign with placeholders, sign again, and compare with what the real keys give. Returns what was signed again."""
    plain = [*(headers or [])]
    wrong = sign_with_botocore(PLACEHOLDERS, service, method, target, plain, body, token, **context)
    right = sign_with_botocore((KEY_ID, SECRET_KEY), service, method, target, plain, body, token, **context)
    signed = parse_authorization(field(wrong, "Authorization"))
    assert signed.key_id == PLACEHOLDERS[0].encode()
    digest = payload_hash(wrong) or hashlib.sha256(body).hexdigest().encode()
    made = resign(method.encode(), target.encode(), wrong, digest, signed, KEY_ID.encode(), SECRET_KEY.encode())
    assert made == field(right, "Authorization")
    assert made != field(wrong, "Authorization")
    assert SECRET_KEY.encode() not in made
    return wrong


@pytest.mark.parametrize("service", ["s3", "s3express", "s3-object-lambda", "s3-outposts", "sts", "dynamodb", "es"])
@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/a/b",
        "/a/b/",
        "//a///b//",
        "/a/./b/../c",
        "/..",
        "/a/..",
        "/a/b/.",
        "/key%20with%20space/%C3%BC%2B~",
        "/arn%3Aaws%3As3%3A%3A%3Ax%2Fy",
        "/?lifecycle",
        "/?prefix=J&max-keys=2",
        "/?a=2&a=1&A=0&a-=3&a0=4",
        "/x?k=%2F%3D%26%20~-_.&empty=",
    ],
)
def test_target_is_as_botocore_sees_it(service: str, target: str) -> None:
    check_against_botocore(service, target=target)


@pytest.mark.parametrize("service", ["s3", "dynamodb"])
def test_body_token_and_headers_are_signed(service: str) -> None:
    headers = [
        ("Content-Type", "application/x-amz-json-1.0"),
        ("X-Amz-Target", "  Table.Get \t  Item  "),
        ("X-Amz-Meta-Twice", "one"),
        ("x-amz-meta-twice", " two  words "),
        ("X-Amz-Meta-Empty", ""),
        ("User-Agent", "not signed"),
    ]
    sent = check_against_botocore(service, "POST", "/", headers, b'{"a": 1}', token="session-token/+=")
    signed = parse_authorization(field(sent, "Authorization"))
    assert b"x-amz-security-token" in signed.signed_headers
    assert b"user-agent" not in signed.signed_headers


def test_token_put_in_afterwards_counts_as_sent() -> None:
    wrong = sign_with_botocore(PLACEHOLDERS, "sts", "GET", "/", [], token="placeholder")
    right = sign_with_botocore((KEY_ID, SECRET_KEY), "sts", "GET", "/", [], token="real-token")
    sent = [(name, value.replace(b"placeholder", b"real-token")) for name, value in wrong]
    signed = parse_authorization(field(wrong, "Authorization"))
    made = resign(b"GET", b"/", sent, EMPTY, signed, KEY_ID.encode(), SECRET_KEY.encode())
    assert made == field(right, "Authorization")


@pytest.mark.parametrize("service", ["s3", "execute-api"])
def test_unsigned_payload(service: str) -> None:
    headers = [("Content-MD5", "x")]
    sent = check_against_botocore(
        service, "PUT", "/key", headers, b"body", payload_signing_enabled=False, has_streaming_input=True
    )
    assert payload_hash(sent) == b"UNSIGNED-PAYLOAD"


def test_checksum_in_an_unsigned_trailer() -> None:
    # What an upload to S3 looks like by default: nothing in the body is signed.
    checksum = {"request_algorithm": {"in": "trailer", "name": "x-amz-checksum-crc32", "algorithm": "crc32"}}
    headers = [("Content-Encoding", "aws-chunked"), ("X-Amz-Trailer", "x-amz-checksum-crc32")]
    sent = check_against_botocore("s3", "PUT", "/key", headers, b"body", checksum=checksum)
    assert payload_hash(sent) == b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def test_date_field_instead_of_x_amz_date() -> None:
    sent = check_against_botocore("sts", headers=[("Date", "is replaced")])
    assert field(sent, "Date") == b"Thu, 29 Feb 2024 23:59:58 -0000"
    assert b"x-amz-date" not in {name.lower() for name, _ in sent}


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
SEGMENT = TEXT.map(lambda text: quote(text, safe="")) | st.sampled_from([".", "..", ""])
PATH = st.lists(SEGMENT, max_size=6).map(lambda segments: "/" + "/".join(segments))
PAIR = st.tuples(TEXT.filter(bool), TEXT, st.booleans()).map(
    lambda pair: quote(pair[0], safe="") + ("=" + quote(pair[1], safe="") if pair[2] or pair[1] else "")
)
QUERY = st.lists(PAIR, max_size=6).map(lambda pairs: "?" + "&".join(pairs) if pairs else "")
VISIBLE = string.ascii_letters + string.digits + string.punctuation + " \t"
HEADER = st.tuples(
    st.text(string.ascii_letters + string.digits + "-", max_size=8).map(lambda name: "X-Amz-Meta-" + name),
    st.text(VISIBLE, max_size=20),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    service=st.sampled_from(["s3", "sts", "dynamodb", "execute-api"]),
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    path=PATH,
    query=QUERY,
    headers=st.lists(HEADER, max_size=5),
    body=st.binary(max_size=20),
    token=st.none() | st.text(string.ascii_letters + "+/=", min_size=1),
)
def test_any_request(
    service: str,
    method: str,
    path: str,
    query: str,
    headers: list[tuple[str, str]],
    body: bytes,
    token: str | None,
) -> None:
    check_against_botocore(service, method, path + query, headers, body, token)
