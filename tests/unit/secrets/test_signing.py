"""Requests signed with the placeholders of an AWS key: signed again over what is really sent, or refused."""

from __future__ import annotations

import hashlib

import pytest

from exeat.errors import ProtocolError
from exeat.policy import Name
from exeat.secrets.misuse import Misuse, MisuseError
from exeat.secrets.model import Injection, Where
from exeat.secrets.request.sigv4 import SignedWith, resign
from exeat.secrets.treatment import treat_request
from exeat.secrets.vault import Vault
from exeat.wire.http1 import RequestHead
from tests.support.secrets.samples import lines_of, make_secret, request, through, treat

HOST = "bucket.s3.test"
HOSTS = [f"{HOST}:443"]
KEY_ID = make_secret("ID", value=b"AKIAREALREALREALREAL", hosts=HOSTS, placeholder=b"AKIAPLACEHOLDERAAAAA")
SECRET_KEY = make_secret("KEY", value=b"real/Secret+Key", hosts=HOSTS, aws_key_id="ID", where=frozenset(Where))
SESSION = make_secret("SESSION", value=b"real/session+token", hosts=HOSTS)
OTHER = make_secret("OTHER", hosts=["other.test:443"])
DATE = b"X-Amz-Date: 20150830T123600Z"
EMPTY = hashlib.sha256(b"").hexdigest().encode()


def vault() -> Vault:
    return Vault([KEY_ID, SECRET_KEY, SESSION, OTHER])


def signed(
    *fields: bytes, names: bytes = b"host;x-amz-date", method: bytes = b"GET", body: bytes | None = None
) -> RequestHead:
    authorization = (
        b"Authorization: AWS4-HMAC-SHA256 Credential=%b/20150830/us-east-1/s3/aws4_request, "
        b"SignedHeaders=%b, Signature=%b" % (KEY_ID.placeholder, names, b"0" * 64)
    )
    return request(DATE, *fields, authorization, method=method, body=body)


def expected(method: bytes, target: bytes, payload: bytes, names: bytes, *more: tuple[bytes, bytes]) -> bytes:
    how = SignedWith(b"", b"20150830", b"us-east-1", b"s3", tuple(names.split(b";")), b"")
    headers = [(b"host", HOST.encode()), (b"x-amz-date", b"20150830T123600Z"), *more]
    return b"Authorization: " + resign(method, target, headers, payload, how, KEY_ID.value, SECRET_KEY.value)


def test_a_request_without_a_body_is_signed_anew() -> None:
    treatment = treat(vault(), signed(), b"/a%20b?x=1", host=HOST)
    assert lines_of(treatment.passed) == [DATE, expected(b"GET", b"/a%20b?x=1", EMPTY, b"host;x-amz-date")]
    assert treatment.names == ("ID", "KEY")
    assert treatment.whole_body == 0
    assert SECRET_KEY.value not in treatment.passed
    assert not treatment.is_repeatable, "each is signed by itself"


def test_what_is_signed_is_what_is_sent() -> None:
    """Values that were put in, a header that was changed, a length that we write ourselves."""
    names = b"accept-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
    digest = hashlib.sha256(b"body").hexdigest().encode()
    head = signed(
        b"Accept-Encoding: gzip, exi",
        b"X-Amz-Security-Token: " + SESSION.placeholder,
        b"X-Amz-Content-Sha256: " + digest,
        names=names,
        method=b"PUT",
        body=b"body",
    )
    treatment = treat(vault(), head, b"/?token=" + SESSION.placeholder, host=HOST)
    more = [
        (b"accept-encoding", b"identity"),
        (b"x-amz-security-token", SESSION.value),
        (b"x-amz-content-sha256", digest),
        (b"content-length", b"4"),
    ]
    assert treatment.path == b"/?token=real%2Fsession%2Btoken"
    assert lines_of(treatment.passed)[-1] == expected(b"PUT", treatment.path, digest, names, *more)
    assert treatment.names == ("ID", "KEY", "SESSION")
    assert (treatment.whole_body, treatment.keeps_length) == (0, True)


@pytest.mark.parametrize("payload", [b"UNSIGNED-PAYLOAD", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"])
def test_a_body_that_is_not_signed_is_streamed(payload: bytes) -> None:
    names = b"host;x-amz-content-sha256;x-amz-date"
    head = signed(b"x-amz-content-sha256: " + payload, b"Transfer-Encoding: chunked", names=names, method=b"PUT")
    treatment = treat(vault(), head, host=HOST)
    wanted = expected(b"PUT", b"/", payload, names, (b"x-amz-content-sha256", payload))
    assert lines_of(treatment.passed)[-1] == wanted
    assert through(treatment.body, [b"a", SECRET_KEY.placeholder]) == b"a" + SECRET_KEY.placeholder
    with pytest.raises(MisuseError):
        through(treatment.body, [OTHER.placeholder])


@pytest.mark.parametrize("fields", [[], [b"Transfer-Encoding: chunked"]])
def test_a_body_without_a_hash_is_hashed(fields: list[bytes]) -> None:
    body = b"Action=ListUsers&x=" + SECRET_KEY.placeholder
    head = signed(*fields, method=b"POST", body=None if fields else body)
    treatment = treat(vault(), head, host=HOST)
    assert treatment.whole_body == 16 * 1024 * 1024
    assert treatment.seal(body) == body, "what is in it stays"
    digest = hashlib.sha256(body).hexdigest().encode()
    assert lines_of(treatment.passed)[-1] == expected(b"POST", b"/", digest, b"host;x-amz-date")
    assert treatment.names == ("ID", "KEY")
    with pytest.raises(MisuseError):
        treat(vault(), head, host=HOST).seal(OTHER.placeholder)


def test_a_length_that_is_signed_is_that_of_the_body_that_was_read() -> None:
    names = b"content-length;host;x-amz-date"
    treatment = treat(vault(), signed(names=names, method=b"POST", body=b"four"), host=HOST)
    treatment.seal(b"four")
    digest = hashlib.sha256(b"four").hexdigest().encode()
    assert lines_of(treatment.passed)[-1] == expected(b"POST", b"/", digest, names, (b"content-length", b"4"))


@pytest.mark.parametrize(
    ("fields", "path", "status"),
    [
        ([b"x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD"], b"/", 403),
        ([], b"/?X-Amz-Credential=%b%%2F20150830%%2Fus-east-1%%2Fs3%%2Faws4_request&X-Amz-Signature=0", 403),
    ],
    ids=["signed chunks", "signed URL"],
)
def test_what_cannot_be_signed_anew_is_refused(fields: list[bytes], path: bytes, status: int) -> None:
    if b"%b" in path:
        path = path % KEY_ID.placeholder
    with pytest.raises(ProtocolError) as caught:
        treat(vault(), signed(*fields, method=b"PUT", body=b"x"), path, host=HOST)
    assert caught.value.status == status


@pytest.mark.parametrize("signed_first", [True, False])
def test_a_second_authorization_field_is_refused(signed_first: bool) -> None:
    fields = [lines_of(signed().passed)[-1], b"Authorization: Bearer x"]
    with pytest.raises(ProtocolError) as caught:
        treat(vault(), request(DATE, *(fields if signed_first else reversed(fields))), host=HOST)
    assert caught.value.status == 400


def test_the_secret_key_never_goes_over_the_wire() -> None:
    """Not even if a program puts its placeholder where any other value would go."""
    text = SECRET_KEY.placeholder
    treatment = treat(vault(), request(b"X: " + text, method=b"POST", body=b"x"), b"/?" + text, host=HOST)
    assert (lines_of(treatment.passed), treatment.path, treatment.names) == ([b"X: " + text], b"/?" + text, ())
    assert through(treatment.body, [text]) == text


def test_the_secret_key_has_to_be_for_the_place_too() -> None:
    elsewhere = make_secret("KEY", hosts=["other.test:443"], aws_key_id="ID")
    with pytest.raises(ProtocolError) as caught:
        treat(Vault([KEY_ID, elsewhere]), signed(), host=HOST)
    assert caught.value.status == 403


def test_a_key_id_alone_is_a_value_like_others() -> None:
    treatment = treat(Vault([KEY_ID]), signed(), host=HOST)
    assert b"Credential=AKIAREALREALREALREAL/" in treatment.passed
    assert treatment.names == ("ID",)


def test_the_signature_of_another_key_is_left_alone() -> None:
    line = b"Authorization: AWS4-HMAC-SHA256 Credential=AKIAOTHER/20150830/us-east-1/s3/aws4_request, whatever"
    assert lines_of(treat(vault(), request(line), host=HOST).passed) == [line]


def test_a_header_that_is_set_takes_the_place_of_a_signature() -> None:
    token = make_secret("TOKEN", hosts=HOSTS, inject=Injection("Authorization", "Bearer {value}"))
    treatment = treat(Vault([KEY_ID, SECRET_KEY, token]), signed(), host=HOST)
    assert lines_of(treatment.passed) == [DATE, b"Authorization: Bearer " + token.value]
    assert treatment.names == ("TOKEN",)


@pytest.mark.parametrize(("host", "secure"), [("other.test", True), (HOST, False)])
def test_it_is_not_signed_for_another_place(host: str, secure: bool) -> None:
    found = vault()
    bound = found.bound_to(Name(host), 443)
    outcome = treat_request(found, bound, signed(), b"/", secure=secure, authority=host.encode())
    assert isinstance(outcome, Misuse)
    assert outcome.names == ("ID",)
