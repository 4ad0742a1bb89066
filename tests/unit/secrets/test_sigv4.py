"""Signatures made again: AWS's published examples, what is read alike, and what is refused."""

from __future__ import annotations

import hashlib

import pytest

from exeat.errors import ProtocolError
from exeat.secrets.request.sigv4 import SignedWith, is_presigned, is_signed, parse_authorization, payload_hash, resign

KEY_ID, SECRET_KEY = "AKIAREALREALREALREAL", "real/Secret+Key0123456789abcdefghijklmnop"
EMPTY = hashlib.sha256(b"").hexdigest().encode()
Fields = list[tuple[bytes, bytes]]

SUITE = SignedWith(b"x", b"20150830", b"us-east-1", b"service", (b"host", b"x-amz-date"), b"0" * 64)
SUITE_HEADERS = [(b"Host", b"example.amazonaws.com"), (b"X-Amz-Date", b"20150830T123600Z")]
UNRESERVED = b"/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("method", "target", "signature"),
    [
        (b"GET", b"/", b"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        (b"POST", b"/", b"5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            b"GET",
            b"/?Param2=value2&Param1=value1",
            b"b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (b"GET", UNRESERVED, b"07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"),
        (b"GET", b"/?\xe1\x88\xb4=bar", b"2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"),
    ],
    ids=["get-vanilla", "post-vanilla", "query-order-key-case", "get-unreserved", "utf8-query"],
)
def test_published_test_suite(method: bytes, target: bytes, signature: bytes) -> None:
    made = resign(
        method, target, SUITE_HEADERS, EMPTY, SUITE, b"AKIDEXAMPLE", b"wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    )
    assert made == (
        b"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
        b"SignedHeaders=host;x-amz-date, Signature=" + signature
    )


WELCOME = hashlib.sha256(b"Welcome to Amazon S3.").hexdigest().encode()


@pytest.mark.parametrize(
    ("method", "target", "more", "digest", "signature"),
    [
        (
            b"GET",
            b"/test.txt",
            [(b"Range", b"bytes=0-9")],
            EMPTY,
            b"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            b"PUT",
            b"/test$file.text",  # sent as it is, signed as %24
            [(b"Date", b"Fri, 24 May 2013 00:00:00 GMT"), (b"x-amz-storage-class", b"REDUCED_REDUNDANCY")],
            WELCOME,
            b"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (b"GET", b"/?lifecycle", [], EMPTY, b"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            b"GET",
            b"/?prefix=J&max-keys=2",
            [],
            EMPTY,
            b"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
    ids=["get-object", "put-object", "lifecycle", "list"],
)
def test_published_s3_examples(method: bytes, target: bytes, more: Fields, digest: bytes, signature: bytes) -> None:
    headers = [
        (b"host", b"examplebucket.s3.amazonaws.com"),
        (b"x-amz-content-sha256", digest),
        (b"x-amz-date", b"20130524T000000Z"),
        *more,
    ]
    names = tuple(sorted(name.lower() for name, _ in headers))
    signed = SignedWith(b"x", b"20130524", b"us-east-1", b"s3", names, b"0" * 64)
    made = resign(method, target, headers, digest, signed, KEY_ID.encode(), b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    assert made.rpartition(b"=")[2] == signature


def suite_signature(target: bytes, service: bytes = b"service") -> bytes:
    signed = SignedWith(b"x", b"20150830", b"us-east-1", service, (b"host", b"x-amz-date"), b"0" * 64)
    return resign(b"GET", target, SUITE_HEADERS, EMPTY, signed, b"key", b"secret")


@pytest.mark.parametrize(
    ("service", "sent", "same"),
    [
        (b"s3", b"/a!b=%7e%c3%bc", b"/a%21b%3D~%C3%BC"),
        (b"s3", b"/100%", b"/100%25"),
        (b"s3", b"/a+b", b"/a%20b"),
        (b"sts", b"/?a=b=c/d", b"/?a=b%3Dc%2Fd"),
        (b"sts", b"/?a=b+c", b"/?a=b%20c"),
        (b"sts", b"/?&a=%7e&&b&", b"/?a=~&b="),
        (b"sts", b"/?", b"/"),
    ],
)
def test_forms_that_aws_reads_alike(service: bytes, sent: bytes, same: bytes) -> None:
    assert suite_signature(sent, service) == suite_signature(same, service)


@pytest.mark.parametrize(
    ("service", "one", "other"),
    [
        (b"s3", b"/a/../b", b"/b"),
        (b"s3", b"/a//b", b"/a/b"),
        (b"s3", b"/a%2Fb", b"/a/b"),
        (b"sts", b"/a%2Fb", b"/a/b"),
        (b"sts", b"/a%20b", b"/a b"),
        (b"sts", b"/?a=%2B", b"/?a=+"),
    ],
)
def test_forms_that_differ(service: bytes, one: bytes, other: bytes) -> None:
    assert suite_signature(one, service) != suite_signature(other, service)


GOOD = (
    b"AWS4-HMAC-SHA256 Credential=AKIA/20150830/us-east-1/sts/aws4_request, SignedHeaders=host;x-amz-date, Signature="
    + b"a1" * 32
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (GOOD, True),
        (b"  " + GOOD, True),
        (b"AWS4-HMAC-SHA256", True),
        (b"AWS4-ECDSA-P256-SHA256 Credential=x", True),
        (b"Bearer AWS4-HMAC-SHA256", False),
        (b"AWS AKIA:signature", False),
        (b"AWS4-", False),
        (b"", False),
    ],
)
def test_is_signed(value: bytes, expected: bool) -> None:
    assert is_signed(value) is expected


def test_parts_may_stand_in_any_order_and_without_spaces() -> None:
    expected = SignedWith(b"AKIA", b"20150830", b"us-east-1", b"sts", (b"host", b"x-amz-date"), b"a1" * 32)
    scheme, *parts = GOOD.split(b" ")
    assert parse_authorization(GOOD) == expected
    assert parse_authorization(scheme + b" " + b"".join(parts)) == expected
    assert parse_authorization(scheme + b" " + b",".join(part.strip(b",") for part in reversed(parts))) == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"AWS4-HMAC-SHA256", b"Bearer"),
        (b"Credential=", b"Credentials="),
        (b"Credential=", b"Credential"),
        (b", Signature=", b", Signature=a1, Signature="),
        (b"SignedHeaders=host;x-amz-date, ", b""),
        (b"AKIA/", b""),
        (b"AKIA/", b"/"),
        (b"AKIA/", b"A KIA/"),
        (b"20150830", b"2015083"),
        (b"20150830", b"20150830\n"),
        (b"us-east-1", b""),
        (b"sts", b"s ts"),
        (b"aws4_request", b"aws4"),
        (b"host;", b""),
        (b"host;", b"host;host;"),
        (b"host;", b"host;;"),
        (b"host;", b"Host;"),
        (b"host;", b"authorization;host;"),
        (b"a1a1", b"a1g1"),
        (b"=a1a1", b"=a1"),
    ],
)
def test_malformed_authorization(old: bytes, new: bytes) -> None:
    assert old in GOOD
    with pytest.raises(ProtocolError, match="malformed") as caught:
        parse_authorization(GOOD.replace(old, new, 1))
    assert caught.value.status == 400


@pytest.mark.parametrize("scheme", [b"AWS4-ECDSA-P256-SHA256", b"AWS4-HMAC-SHA512"])
def test_other_algorithms_are_not_supported(scheme: bytes) -> None:
    with pytest.raises(ProtocolError, match="not supported") as caught:
        parse_authorization(GOOD.replace(b"AWS4-HMAC-SHA256", scheme))
    assert caught.value.status == 403


def test_payload_hash() -> None:
    name = b"X-Amz-Content-SHA256"
    assert payload_hash([(b"Host", b"x")]) is None
    assert payload_hash([(name, b" " + EMPTY)]) == EMPTY
    for value, status, reason in (
        (b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD", 403, "streaming signatures cannot be made again"),
        (b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", 403, "streaming signatures cannot be made again"),
        (b"STREAMING-AWS4-HMAC-SHA256-EVENTS", 403, "streaming signatures cannot be made again"),
        (b"", 400, "malformed"),
        (EMPTY[1:], 400, "malformed"),
    ):
        with pytest.raises(ProtocolError, match=reason) as caught:
            payload_hash([(name, value)])
        assert caught.value.status == status
    with pytest.raises(ProtocolError, match="more than one"):
        payload_hash([(name, EMPTY), (name.lower(), EMPTY)])


@pytest.mark.parametrize(
    ("query", "key_id"),
    [
        (b"X-Amz-Credential=AKIA%2F20150830%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Signature=00", b"AKIA"),
        (b"x=1&X-Amz-Signature=00&X-Amz-Credential=AKIA/20150830/us-east-1/s3/aws4_request", b"AKIA"),
        (b"X%2DAmz-Credential=A%4BIA%2f20150830%2fr%2fs3%2faws4_request&x-amz-signature=", b"AKIA"),
        (b"X-Amz-Credential=AKIA&X-Amz-Signature=00", b"AKIA"),
        (b"X-Amz-Credential=AKIA%2F20150830%2Fus-east-1%2Fs3%2Faws4_request", None),
        (b"X-Amz-Signature=00", None),
        (b"", None),
    ],
)
def test_is_presigned(query: bytes, key_id: bytes | None) -> None:
    assert is_presigned(query) == key_id


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (SUITE_HEADERS[1:], "signed header host is not in the request"),
        (SUITE_HEADERS[:1], "signed header x-amz-date is not in the request"),
        ([*SUITE_HEADERS, SUITE_HEADERS[1]], "more than one x-amz-date"),
        ([SUITE_HEADERS[0], (b"X-Amz-Date", b"20150831T000000Z")], "does not agree"),
        ([SUITE_HEADERS[0], (b"X-Amz-Date", b"now")], "does not agree"),
    ],
)
def test_requests_that_cannot_be_signed(headers: Fields, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason) as caught:
        resign(b"GET", b"/", headers, EMPTY, SUITE, KEY_ID.encode(), SECRET_KEY.encode())
    assert caught.value.status == 400
    assert SECRET_KEY not in f"{caught.value!r}{caught.value.detail}"


@pytest.mark.parametrize("date", [b"", b"Sun, 30 Aug 2015", b"Sun, 30 Foo 2015 12:36:00 GMT", None])
def test_without_a_usable_date(date: bytes | None) -> None:
    signed = SignedWith(b"x", b"20150830", b"us-east-1", b"sts", (b"host",), b"0" * 64)
    headers = SUITE_HEADERS[:1] if date is None else [SUITE_HEADERS[0], (b"Date", date)]
    with pytest.raises(ProtocolError, match="neither" if date is None else "does not agree"):
        resign(b"GET", b"/", headers, EMPTY, signed, KEY_ID.encode(), SECRET_KEY.encode())


@pytest.mark.parametrize("target", [b"", b"*", b"https://example.test/"])
def test_target_has_to_be_a_path(target: bytes) -> None:
    with pytest.raises(ProtocolError, match="begins with /"):
        suite_signature(target)


@pytest.mark.parametrize(
    ("key_id", "secret_key"),
    [
        ("", SECRET_KEY),
        (KEY_ID + "\r\nX: y", SECRET_KEY),
        (KEY_ID + ",", SECRET_KEY),
        (KEY_ID, ""),
        (KEY_ID, SECRET_KEY + "\n"),
    ],
)
def test_keys_that_no_aws_key_looks_like_are_not_shown(key_id: str, secret_key: str) -> None:
    with pytest.raises(ProtocolError, match="characters that no AWS key has") as caught:
        resign(b"GET", b"/", SUITE_HEADERS, EMPTY, SUITE, key_id.encode(), secret_key.encode())
    assert caught.value.status == 502
    shown = f"{caught.value!r}{caught.value}{caught.value.detail}"
    assert SECRET_KEY not in shown
    assert KEY_ID not in shown
