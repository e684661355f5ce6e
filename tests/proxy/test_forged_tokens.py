"""Two hundred tokens that must not open the door, through a real proxy with an RSA key set.

The proxy accepts HS256 with a secret and RS256 with a published key, which is the setting in which
a public key could be taken for a secret.
"""

import base64
import hashlib
import hmac
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from tests.proxy.support import (
    DEADLINE_S,
    SECRET,
    ProxyProcess,
    ScriptedUpstream,
    running_proxy,
    until,
)

CLAIMS = {"team_id": "team-a", "token_id": "token-1"}


def now() -> int:
    """When a test runs, which may be minutes after its module was imported."""
    return int(time.time())


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(header: object, claims: object, key: bytes = SECRET.encode()) -> str:
    """An HMAC token with any header and claims, made without a library that would object."""
    signed = f"{b64(json.dumps(header).encode())}.{b64(json.dumps(claims).encode())}"
    return f"{signed}.{b64(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def strict_proxy(
    upstream: ScriptedUpstream,
    rsa_key: rsa.RSAPrivateKey,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProxyProcess]:
    directory: Path = tmp_path_factory.mktemp("strict")
    entry = RSAAlgorithm.to_jwk(rsa_key.public_key(), as_dict=True) | {"kid": "k1"}
    jwks = directory / "jwks.json"
    jwks.write_text(json.dumps({"keys": [entry]}))
    revoked = directory / "revoked"
    revoked.write_text("# left the team\nrevoked-1\n")
    with running_proxy(
        directory,
        upstream.url,
        JWT_ALGORITHMS="HS256,RS256",
        JWKS_FILE=str(jwks),
        JWT_AUDIENCE="hearth",
        JWT_ISSUER="https://issuer.test",
        REVOKED_TOKENS_FILE=str(revoked),
    ) as process:
        yield process


def good_claims(**changes: object) -> dict[str, object]:
    claims = CLAIMS | {"aud": "hearth", "iss": "https://issuer.test", "exp": now() + 3600}
    return {name: value for name, value in (claims | changes).items() if value is not None}


def forged_authorizations(rsa_key: rsa.RSAPrivateKey) -> list[str]:
    """The whole catalogue, as header values."""
    return [
        *(f"Bearer {token}" for token in wrong_algorithms()),
        *(f"Bearer {token}" for token in confused_keys(rsa_key)),
        *(f"Bearer {token}" for token in wrong_claims()),
        *(f"Bearer {token}" for token in mangled_tokens()),
        *wrong_schemes(),
    ]


def wrong_algorithms() -> Iterator[str]:
    claims = good_claims()
    names: list[object] = ["none", "None", "NONE", "nOnE", "", "HS384", "HS512", "ES256", "HS1"]
    names += [None, 1, [], {}]
    for name in names:
        for header in ({"alg": name, "typ": "JWT"}, {"alg": name, "kid": "k1"}):
            token = sign(header, claims)
            yield token
            yield token.rpartition(".")[0] + "."  # no signature at all
    yield sign({"typ": "JWT"}, claims)
    yield sign([], claims)
    yield sign({"alg": "HS256", "crit": ["exp"], "exp": 1}, claims)
    yield sign({"alg": "HS256", "b64": False, "crit": ["b64"]}, claims)
    yield sign({"alg": "HS256", "kid": {"$ne": None}}, claims)


def confused_keys(rsa_key: rsa.RSAPrivateKey) -> Iterator[str]:
    """The published key, in each of its spellings, as an HMAC secret; and strangers' keys."""
    claims, public = good_claims(), rsa_key.public_key()
    for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER):
        for form in (
            serialization.PublicFormat.SubjectPublicKeyInfo,
            serialization.PublicFormat.PKCS1,
        ):
            key = public.public_bytes(encoding, form)
            for variant in (key, key.strip(), key + b"\n", b64(key).encode()):
                yield sign({"alg": "HS256", "kid": "k1"}, claims, variant)
                yield sign({"alg": "RS256", "kid": "k1"}, claims, variant)
    entry = json.dumps(RSAAlgorithm.to_jwk(public, as_dict=True)).encode()
    yield sign({"alg": "HS256", "kid": "k1"}, claims, entry)
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for kid in ("k1", "k2", None):
        yield jwt.encode(claims, stranger, "RS256", headers={"kid": kid} if kid else None)
    curve = ec.generate_private_key(ec.SECP256R1())
    yield jwt.encode(claims, curve, "ES256", headers={"kid": "k1"})
    own = RSAAlgorithm.to_jwk(stranger.public_key(), as_dict=True)
    for header in ({"jwk": own}, {"jku": "http://127.0.0.1:9/x"}, {"x5u": "http://127.0.0.1:9"}):
        yield jwt.encode(claims, stranger, "RS256", headers={"kid": "k1", **header})
    for secret in (b"", b"\0", b"secret", SECRET[:-1].encode(), SECRET.upper().encode()):
        yield sign({"alg": "HS256"}, claims, secret)


def wrong_claims() -> Iterator[str]:
    changes: list[dict[str, object]] = [
        {"exp": now() - 3600},
        {"exp": now() - 31},
        {"exp": 0},
        {"exp": -1},
        {"exp": "tomorrow"},
        {"exp": [now() + 60]},
        {"exp": 1e400},
        {"exp": 10**400},
        {"nbf": now() + 3600},
        {"nbf": now() + 120},
        {"nbf": "later"},
        {"aud": "another"},
        {"aud": ["another"]},
        {"aud": None},
        {"aud": ["hearth", 1]},
        {"aud": {"hearth": 1}},
        {"iss": "https://other.test"},
        {"iss": None},
        {"iss": ["https://issuer.test"]},
        {"team_id": None},
        {"team_id": ""},
        {"team_id": 7},
        {"team_id": ["team-a"]},
        {"team_id": "a b"},
        {"team_id": "a\r\nX-Evil: 1"},
        {"team_id": "tëam"},
        {"team_id": "x" * 129},
        {"token_id": None},
        {"token_id": ""},
        {"token_id": True},
        {"token_id": "a\nb"},
        {"token_id": "revoked-1"},
    ]
    for change in changes:
        yield sign({"alg": "HS256", "typ": "JWT"}, good_claims(**change))
    wholes: list[object] = [[], "text", 1, None, {}]
    for whole in wholes:
        yield sign({"alg": "HS256"}, whole)


def mangled_tokens() -> Iterator[str]:
    good = sign({"alg": "HS256"}, good_claims())
    head, body, signature = good.split(".")
    for i in range(0, len(good) - 1, max(1, len(good) // 20)):
        yield good[:i]
    flipper = random.Random(1)
    for _ in range(20):
        at = flipper.randrange(len(good) - 2)
        if good[at] != ".":
            yield good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :]
    yield f"{head}.{body}"
    yield f"{head}.{body}.{signature}.{signature}"
    yield f"{head}..{signature}"
    yield f".{body}.{signature}"
    yield f"{good}="
    yield f"{good}\t"[:-1] + " x"
    yield f"{good},{good}"
    yield good.replace(".", "。".encode().decode("latin-1"))
    yield "é".encode().decode("latin-1") + good
    yield "x" * 7000
    yield ".".join(["A" * 2000] * 3)
    yield sign({"alg": "HS256", "pad": "x" * 5000}, good_claims()) + "A" * 800
    deep = b64(b"[" * 3000)
    yield f"{deep}.{body}.{signature}"
    yield "null"
    yield "{}.{}.{}"
    yield "../../etc/passwd"


def wrong_schemes() -> Iterator[str]:
    good = sign({"alg": "HS256"}, good_claims())
    yield from ("", " ", "Bearer", "Bearer ", good, f"Basic {good}", f"Token {good}", "Basic OjA=")
    yield from (f"Bearer{good}", f"Bearer:{good}", f"Bearer Bearer {good}", f'Bearer "{good}"')
    yield from (f"Digest Bearer {good}", f"Bearer {good};", f"Bearer token={good}", f"JWT {good}")


def audit_of_forged(proxy: ProxyProcess) -> list[dict[str, object]]:
    return [line for line in proxy.audit() if line["route"] == "/forged"]


def test_every_forged_token_is_a_401_that_says_nothing(
    strict_proxy: ProxyProcess, upstream: ScriptedUpstream, rsa_key: rsa.RSAPrivateKey
) -> None:
    catalogue = forged_authorizations(rsa_key)
    assert len(set(catalogue)) >= 200
    bodies = set()
    with requests.Session() as session:
        for authorization in catalogue:
            request = requests.Request("GET", strict_proxy.url + "/forged").prepare()
            headers: Any = request.headers  # of bytes too
            headers["Authorization"] = authorization.encode("latin-1")
            reply = session.send(request, timeout=DEADLINE_S)
            assert reply.status_code == 401, authorization[:200]
            assert reply.headers["WWW-Authenticate"].startswith("Bearer")
            bodies.add(reply.text)
    assert len(bodies) == 1
    until(lambda: len(audit_of_forged(strict_proxy)) == len(catalogue), "their audit lines")
    assert all(line.get("reason") for line in audit_of_forged(strict_proxy))
    assert upstream.seen("/forged") == []


def test_duplicate_authorization_headers_are_a_401(strict_proxy: ProxyProcess) -> None:
    good = sign({"alg": "HS256"}, good_claims())
    for first, second in ((good, good), (good, "x"), ("x", good)):
        head = (
            f"GET /twice HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer {first}\r\n"
            f"Authorization: Bearer {second}\r\n\r\n"
        )
        assert strict_proxy.raw(head.encode()).startswith(b"HTTP/1.1 401 ")


def test_huge_header_is_refused_by_the_parser(strict_proxy: ProxyProcess) -> None:
    head = b"GET /big HTTP/1.1\r\nHost: p\r\nAuthorization: Bearer %b\r\n\r\n" % (b"x" * 100_000)
    assert strict_proxy.raw(head)[9:12] in (b"400", b"431")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR"])
def test_the_good_token_they_were_made_from_passes(
    strict_proxy: ProxyProcess, rsa_key: rsa.RSAPrivateKey, scheme: str
) -> None:
    for token in (
        sign({"alg": "HS256"}, good_claims(iat=now() + 3600, sub=7, jti=7)),
        sign({"alg": "HS256"}, good_claims(exp=now() - 5, aud=["x", "hearth"])),  # within leeway
        jwt.encode(good_claims(), rsa_key, "RS256", headers={"kid": "k1"}),
        jwt.encode(good_claims(), rsa_key, "RS256"),
    ):
        headers = {"Authorization": f"{scheme} {token}"}
        assert requests.get(strict_proxy.url + "/v1/models", headers=headers, timeout=DEADLINE_S).ok


def test_the_reason_is_logged_and_the_token_is_not(strict_proxy: ProxyProcess) -> None:
    token = sign({"alg": "HS256"}, good_claims(exp=now() - 3600))
    headers = {"Authorization": f"Bearer {token}"}
    requests.get(strict_proxy.url + "/reason", headers=headers, timeout=DEADLINE_S)
    line = strict_proxy.audit_of("/reason")
    assert "ExpiredSignatureError" in str(line["reason"])
    assert token not in strict_proxy.log() + strict_proxy.audit_file.read_text()
