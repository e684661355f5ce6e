"""Key sets: what is taken from a JWKS, when it is fetched, and what is kept when fetching fails."""

import json
import threading
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import example, given
from hypothesis import strategies as st
from jwt import PyJWK
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from common.fetch import FetchFailed
from proxy.access.auth import Authenticator, parse_revoked
from proxy.access.keys import (
    MAX_AGE_S,
    MAX_CANDIDATES,
    MAX_REFETCHES,
    REFETCH_WINDOW_S,
    JwksUrl,
    KeySource,
    fetch_jwks,
    parse_jwks,
    select_keys,
    shared_secrets,
)
from proxy.errors import Unauthorized
from proxy.files import WatchedFile
from proxy.settings import Settings
from tests.proxy.support import SECRET, ScriptedUpstream

CLAIMS = {"team_id": "a", "token_id": "b"}
PrivateKeys = dict[str, Any]  # by algorithm
ALGORITHMS = ("HS256", "RS256", "ES256", "EdDSA")


@pytest.fixture(scope="module")
def private_keys() -> PrivateKeys:
    return {
        "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate(),
    }


def jwks_of(private_keys: PrivateKeys, suffix: str = "") -> str:
    makers: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}
    entries = [
        makers[name].to_jwk(key.public_key(), as_dict=True) | {"kid": name + suffix}
        for name, key in private_keys.items()
    ]
    return json.dumps({"keys": entries})


def authenticator(*sources: KeySource) -> Authenticator:
    return Authenticator(Settings(jwt_algorithms=ALGORITHMS), sources, tuple)


def published(keys: tuple[PyJWK, ...]) -> KeySource:
    return lambda algorithm, key_id: select_keys(keys, algorithm, key_id)


class Provider:
    """An identity provider that can be switched to other keys or off."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.is_down = False
        self.num_fetches = 0
        self.is_fetching, self.may_answer = threading.Event(), threading.Event()
        self.may_answer.set()

    def fetch(self, url: str) -> str:
        self.num_fetches += 1
        self.is_fetching.set()
        assert self.may_answer.wait(60)
        if self.is_down:
            raise FetchFailed("down")
        return self.text


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_each_public_key_algorithm_is_verified_by_its_own_key(
    private_keys: PrivateKeys, tmp_path: Path, algorithm: str
) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(jwks_of(private_keys))
    file = WatchedFile(path, parse_jwks)
    door = authenticator(
        shared_secrets([SECRET]),
        lambda algorithm, key_id: select_keys(file.value, algorithm, key_id),
    )
    token = jwt.encode(CLAIMS, private_keys[algorithm], algorithm, headers={"kid": algorithm})
    assert door.authenticate(f"Bearer {token}").team_id == "a"
    for other in {"RS256", "ES256", "EdDSA"} - {algorithm}:
        wrong = jwt.encode(CLAIMS, private_keys[algorithm], algorithm, headers={"kid": other})
        with pytest.raises(Unauthorized):
            door.authenticate(f"Bearer {wrong}")


def test_both_secrets_open_while_clients_change_over() -> None:
    old, new = "o" * 32, "n" * 32
    door = authenticator(shared_secrets([new, old]))
    for secret in (old, new):
        assert door.authenticate(f"Bearer {jwt.encode(CLAIMS, secret)}").token_id == "b"
    with pytest.raises(Unauthorized):
        authenticator(shared_secrets([new])).authenticate(f"Bearer {jwt.encode(CLAIMS, old)}")


def test_unknown_kinds_and_secrets_in_a_key_set_are_skipped(
    private_keys: PrivateKeys,
) -> None:
    document = json.loads(jwks_of(private_keys))
    document["keys"] += [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "leak"},
        {"kty": "PQ", "kid": "future"},
        {"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"},
        "text",
    ]
    keys = parse_jwks(json.dumps(document))
    assert {key.key_id for key in keys} == {"RS256", "ES256", "EdDSA"}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "oct"}]}'])
def test_set_without_a_usable_key_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_jwks(text)


def make_url_source(
    private_keys: PrivateKeys,
) -> tuple[JwksUrl, Provider, Clock]:
    provider, clock = Provider(jwks_of(private_keys)), Clock()
    return JwksUrl("https://idp.test/jwks", provider.fetch, clock), provider, clock


def test_set_is_fetched_once_and_kept(private_keys: PrivateKeys) -> None:
    source, provider, clock = make_url_source(private_keys)
    for _ in range(10):
        assert source.candidates("RS256", "RS256")
    assert provider.num_fetches == 1
    clock.now_s += MAX_AGE_S
    assert source.candidates("RS256", "RS256")
    assert provider.num_fetches == 2


def test_new_key_is_found_although_tokens_of_others_have_been_looked_for(
    private_keys: PrivateKeys,
) -> None:
    """As where a client goes on with a token of the key that has been replaced."""
    source, provider, _ = make_url_source(private_keys)
    assert source.candidates("RS256", "RS256")
    for _ in range(100):
        assert not source.candidates("RS256", "replaced")
    assert provider.num_fetches == 2
    provider.text = jwks_of(private_keys, suffix="-new")
    assert source.candidates("RS256", "RS256-new")
    assert provider.num_fetches == 3


def test_made_up_key_ids_make_it_fetch_at_a_limited_rate(private_keys: PrivateKeys) -> None:
    source, provider, clock = make_url_source(private_keys)
    for number in range(100):
        assert not source.candidates("RS256", f"made-up {number}")
    assert provider.num_fetches == MAX_REFETCHES
    clock.now_s += REFETCH_WINDOW_S
    assert not source.candidates("RS256", "made-up 0")
    assert provider.num_fetches == MAX_REFETCHES + 1


def test_key_that_names_no_algorithm_or_no_id_is_good_for_each_of_its_kind(
    private_keys: PrivateKeys,
) -> None:
    document = json.loads(jwks_of(private_keys))
    for entry in document["keys"]:
        entry.pop("alg", None)
        del entry["kid"]
    keys = parse_jwks(json.dumps(document))
    for algorithm in ("RS256", "RS512", "PS256", "PS384", "ES256", "EdDSA"):
        private = private_keys["RS256" if algorithm[:2] in ("RS", "PS") else algorithm]
        door = Authenticator(Settings(jwt_algorithms=(algorithm,)), [published(keys)], tuple)
        for key_id in (None, "any"):
            headers = {"kid": key_id} if key_id else None
            token = jwt.encode(CLAIMS, private, algorithm, headers=headers)
            assert door.authenticate(f"Bearer {token}").team_id == "a"
    assert select_keys(keys, "HS256", None) == ()


def test_token_without_a_key_id_is_tried_with_each_key_of_a_few() -> None:
    privates = [ec.generate_private_key(ec.SECP256R1()) for _ in range(MAX_CANDIDATES + 1)]
    entries = [
        ECAlgorithm.to_jwk(private.public_key(), as_dict=True) | {"kid": str(number)}
        for number, private in enumerate(privates)
    ]
    door = authenticator(published(parse_jwks(json.dumps({"keys": entries}))))
    *tried, beyond = [f"Bearer {jwt.encode(CLAIMS, private, 'ES256')}" for private in privates]
    for authorization in tried:
        assert door.authenticate(authorization).team_id == "a"
    with pytest.raises(Unauthorized):
        door.authenticate(beyond)


@given(
    name=st.sampled_from(["iat", "jti", "sub"]),
    value=st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just([]),
)
@example("iat", 4e9)
@example("sub", 7)
@example("jti", 7)
def test_claims_that_decide_nothing_are_no_reason_to_refuse(name: str, value: object) -> None:
    token = jwt.api_jws.encode(json.dumps(CLAIMS | {name: value}).encode(), SECRET)
    assert authenticator(shared_secrets([SECRET])).authenticate(f"Bearer {token}").team_id == "a"


def test_secret_key_tokens_never_make_it_fetch(private_keys: PrivateKeys) -> None:
    source, provider, clock = make_url_source(private_keys)
    source.candidates("RS256", "RS256")
    clock.now_s += REFETCH_WINDOW_S
    assert not source.candidates("HS256", "made-up")
    assert provider.num_fetches == 1


def test_last_good_set_outlives_a_provider_that_is_down(private_keys: PrivateKeys) -> None:
    source, provider, clock = make_url_source(private_keys)
    assert source.candidates("RS256", "RS256")
    for outage in ("down", "garbage"):
        provider.is_down, provider.text = outage == "down", "garbage"
        clock.now_s += MAX_AGE_S
        num_before = provider.num_fetches
        for _ in range(50):
            assert source.candidates("RS256", "RS256")
        assert provider.num_fetches == num_before + 1


def test_others_use_the_old_set_while_one_thread_fetches(private_keys: PrivateKeys) -> None:
    source, provider, clock = make_url_source(private_keys)
    assert source.candidates("RS256", "RS256")
    clock.now_s += MAX_AGE_S
    provider.may_answer.clear()
    provider.is_fetching.clear()
    thread = threading.Thread(target=source.candidates, args=("RS256", "RS256"))
    thread.start()
    assert provider.is_fetching.wait(60)
    assert source.candidates("RS256", "RS256")  # returns although the fetch hangs
    provider.may_answer.set()
    thread.join(60)


def test_fetch_takes_a_document_and_refuses_redirects_and_floods(
    private_keys: PrivateKeys,
) -> None:
    text = jwks_of(private_keys)
    server = ScriptedUpstream(lambda peer: peer.reply(text.encode()))
    server.scripts["/moved"] = lambda peer: peer.reply(b"", "302 Found", "Location: /")
    server.scripts["/flood"] = lambda peer: peer.reply(b"x" * 2_000_000)
    server.scripts["/gone"] = lambda peer: peer.reply(b"", "404 Not Found")
    assert fetch_jwks(server.url + "/jwks") == text
    with pytest.raises(FetchFailed, match="answers 302"):
        fetch_jwks(server.url + "/moved")
    with pytest.raises(FetchFailed, match="bytes"):
        fetch_jwks(server.url + "/flood")
    with pytest.raises(FetchFailed, match="answers 404"):
        fetch_jwks(server.url + "/gone")
    server.stop()


def test_a_token_id_with_a_number_sign_can_be_revoked() -> None:
    revoked = parse_revoked("# lost:\n\nlaptop#2\n phone  # stolen\r\ntablet# old\n#1\n")
    assert {"laptop#2", "phone", "tablet", "#1"} <= revoked
    assert not revoked & {"", "lost:", "stolen", "old"}


def test_revocation_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "revoked"
    path.write_text("")
    file = WatchedFile(path, parse_revoked)
    door = Authenticator(Settings(), [shared_secrets([SECRET])], lambda: file.value)
    authorization = f"Bearer {jwt.encode(CLAIMS, SECRET)}"
    assert door.authenticate(authorization).token_id == "b"
    path.write_text("b  # lost laptop\n")
    assert file.refresh()
    with pytest.raises(Unauthorized):
        door.authenticate(authorization)
    path.unlink()
    assert not file.refresh()  # and it stays revoked
    with pytest.raises(Unauthorized):
        door.authenticate(authorization)
