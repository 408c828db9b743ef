"""The issuer, and the Python half of the client: who gets what, and what the issuer cannot know."""

import random
import secrets
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest
from aiohttp.test_utils import TestClient, TestServer
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPrivateNumbers,
    RSAPublicNumbers,
    rsa_crt_dmp1,
    rsa_crt_dmq1,
    rsa_crt_iqmp,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from scipy.stats import chi2

from producers.tokens import (
    Issuer,
    MemoryTokenStore,
    RandomBytes,
    TokenRefusal,
    TokenRefused,
    blind,
    finalize,
    generate,
    key_id,
    message,
    read_public_key,
)
from producers.web import make_token_vectors
from producers.web.demo.issuer import application
from stream_app.errors import ConfigurationError, InvalidInput, ShufflebanditError
from stream_app.wire.token import Verifier, decode_token, encode_token

BATCH = "1.ajBGkDPu9CTkwObEvtE2O9S1QY4wybwxRAI0rBmNT5o"
KEY = make_token_vectors.private_key()
PUBLIC = KEY.public_key()
N = PUBLIC.public_numbers().n
VECTORS = orjson.loads(make_token_vectors.FILE.read_bytes())
RFC = orjson.loads((Path(__file__).parents[1] / "web" / "rfc9474.json").read_bytes())


def key_file(path: Path, key: RSAPrivateKey = KEY) -> Path:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer({"banners": key_file(tmp_path / "key.pem")}, MemoryTokenStore())


def scripted(*parts: bytes) -> RandomBytes:
    """Random bytes that are known before; their lengths are those that are asked for."""
    waiting = iter(parts)

    def draw(size: int) -> bytes:
        drawn = next(waiting)
        assert len(drawn) == size
        return drawn

    return draw


def refusal(issuer: Issuer, *arguments: object) -> TokenRefusal:
    with pytest.raises(TokenRefused) as caught:
        issuer.sign(*arguments)  # type: ignore[arg-type]
    return caught.value.reason


def fresh() -> tuple[bytes, bytes, bytes]:
    """A message of a new report, blinded; and the secret."""
    signed = message(BATCH, secrets.token_bytes(16))
    return (signed, *blind(PUBLIC, signed))


def test_a_token_from_start_to_end(issuer: Issuer) -> None:
    """Blinded, signed, finished: a verifier takes it for this report only."""
    report = secrets.token_bytes(16)
    signed = message(BATCH, report)
    blinded, secret = blind(PUBLIC, signed)
    token = finalize(PUBLIC, signed, issuer.sign("banners", "ann", blinded), secret)
    verifier = Verifier("banners", [PUBLIC])

    assert verifier.verify(BATCH, report, token)
    assert not verifier.verify(BATCH, secrets.token_bytes(16), token)


def test_the_vectors_are_current() -> None:
    """The file is what the code makes now."""
    assert make_token_vectors.FILE.read_bytes() == make_token_vectors.dump(), (
        "run: python -m producers.web.make_token_vectors"
    )


def test_the_vectors(issuer: Issuer) -> None:
    """Every step of them."""
    for number, one in enumerate(VECTORS["tokens"]):
        raw = {name: bytes.fromhex(one[name]) for name in one.keys() - {"batch", "token"}}
        signed = message(one["batch"], one["id"])
        blinded, secret = blind(PUBLIC, signed, scripted(raw["salt"], raw["factor"]))
        signature = issuer.sign("banners", f"user {number}", blinded)

        assert (raw["message"], raw["blinded"], raw["secret"]) == (signed, blinded, secret)
        assert raw["signature"] == signature
        assert decode_token(one["token"]) == finalize(PUBLIC, signed, signature, secret)


def test_the_vector_of_the_rfc(tmp_path: Path) -> None:
    """RFC 9474, A.3, with its key of 4096 bits: blind, sign, finalize."""
    number = {name: int(RFC[name], 16) for name in RFC.keys() - {"source"}}
    raw = {name: bytes.fromhex(RFC[name]) for name in RFC.keys() - {"source"}}
    d = pow(number["e"], -1, (number["p"] - 1) * (number["q"] - 1))
    key = RSAPrivateNumbers(
        number["p"],
        number["q"],
        d,
        rsa_crt_dmp1(d, number["p"]),
        rsa_crt_dmq1(d, number["q"]),
        rsa_crt_iqmp(number["p"], number["q"]),
        RSAPublicNumbers(number["e"], number["n"]),
    ).private_key()
    factor = pow(number["inv"], -1, number["n"]).to_bytes(512)
    signing = Issuer({"rfc": key_file(tmp_path / "rfc.pem", key)}, MemoryTokenStore())
    blinded, secret = blind(key.public_key(), raw["msg"], scripted(raw["salt"], factor))
    signature = signing.sign("rfc", "ann", blinded)

    assert (raw["blinded_msg"], raw["inv"]) == (blinded, secret)
    assert raw["blind_sig"] == signature
    assert raw["sig"] == finalize(key.public_key(), raw["msg"], signature, secret)


def test_one_request_per_user_and_experiment(tmp_path: Path) -> None:
    """The same again after a lost answer, another one never; other users and experiments may."""
    files = {"banners": key_file(tmp_path / "key.pem"), "footers": generate(tmp_path, "f").private}
    issuer = Issuer(files, MemoryTokenStore())
    _, first, _ = fresh()
    _, second, _ = fresh()
    signature = issuer.sign("banners", "ann", first)

    assert signature == issuer.sign("banners", "ann", first)
    assert TokenRefusal.SPENT == refusal(issuer, "banners", "ann", second)
    assert signature == issuer.sign("banners", "ann", first)
    assert issuer.sign("banners", "bob", second)
    assert issuer.sign("footers", "ann", bytes(1) + second[1:])


def test_what_is_malformed_costs_the_user_nothing(issuer: Issuer) -> None:
    """Refused before it is claimed, so that the right request is still signed."""
    _, right, _ = fresh()
    for wrong in (
        b"",
        right[:-1],
        right + b"\0",
        bytes(256),
        N.to_bytes(256),
        (N + 1).to_bytes(256),
        b"\xff" * 256,
    ):
        assert TokenRefusal.MALFORMED == refusal(issuer, "banners", "ann", wrong)
    assert TokenRefusal.UNKNOWN_EXPERIMENT == refusal(issuer, "footers", "ann", right)
    assert TokenRefusal.UNKNOWN_KEY == refusal(issuer, "banners", "ann", right, "another")
    assert TokenRefusal.MALFORMED == refusal(issuer, "banners", "", right)

    assert issuer.sign("banners", "ann", right)


def test_the_largest_and_the_smallest_message_are_signed(issuer: Issuer) -> None:
    """The range is that of the RFC, but for 0, which no client makes."""
    assert issuer.sign("banners", "ann", (1).to_bytes(256)) == (1).to_bytes(256)
    assert issuer.sign("banners", "bob", (N - 1).to_bytes(256)) == (N - 1).to_bytes(256)


def test_pages_from_before_a_change_of_keys_are_served(tmp_path: Path) -> None:
    """By the id of the key that they pin; and still it is one token per user."""
    old = generate(tmp_path / "old", "banners")
    new = generate(tmp_path / "new", "banners")
    issuer = Issuer({"banners": [new.private, old.private]}, MemoryTokenStore())
    pinned = read_public_key(old.public, "page")
    signed = message(BATCH, bytes(16))
    blinded, secret = blind(pinned, signed)
    while blinded[0] >= 0x80:  # below the moduli of both keys, which have their first bit set
        blinded, secret = blind(pinned, signed)
    signature = issuer.sign("banners", "ann", blinded, key_id(pinned))

    assert finalize(pinned, signed, signature, secret)
    assert TokenRefusal.SPENT == refusal(issuer, "banners", "ann", b"\0" + blinded[1:])
    assert TokenRefusal.SPENT == refusal(
        issuer, "banners", "ann", blinded, key_id(read_public_key(new.public, "page"))
    )


def test_a_backend_that_reports_itself_signs_directly(issuer: Issuer) -> None:
    """The token counts as the user's one."""
    text = issuer.token("banners", "ann", BATCH, bytes(16))

    assert Verifier("banners", [PUBLIC]).admits(BATCH, bytes(16), text)
    assert issuer.token("banners", "ann", BATCH, bytes(16))
    with pytest.raises(TokenRefused):
        issuer.token("banners", "ann", BATCH, b"\1" * 16)
    with pytest.raises(InvalidInput):
        issuer.token("banners", "bob", "no batch", bytes(16))


def test_a_cheating_issuer_is_noticed(issuer: Issuer) -> None:
    """A signature of another message, of another length, or of nothing is no token."""
    signed, blinded, secret = fresh()
    signature = issuer.sign("banners", "ann", blinded)
    for wrong in (blinded, bytes(256), signature[:-1], signature + b"\0", b""):
        with pytest.raises(InvalidInput, match="the issuer's signature"):
            finalize(PUBLIC, signed, wrong, secret)


def test_a_wrong_result_is_not_sent(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One signature with an error in one half of the key would give the key away."""
    monkeypatch.setattr("producers.tokens.pow", lambda *_: 1, raising=False)
    with pytest.raises(ShufflebanditError, match="came out wrong"):
        issuer.sign("banners", "ann", fresh()[1])


def test_unusable_private_keys_are_one_line(tmp_path: Path) -> None:
    """Which file, and what to do; nothing of its content."""
    made = generate(tmp_path, "banners")
    for path, problem in (
        (tmp_path / "none.pem", "cannot be read: No such file"),
        (made.public, "not an unencrypted private key"),
    ):
        with pytest.raises(ConfigurationError, match=problem) as caught:
            Issuer({"banners": path}, MemoryTokenStore())
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="have the same key"):
        Issuer({"banners": made.private, "footers": made.private}, MemoryTokenStore())
    with pytest.raises(ConfigurationError, match="give a private key"):
        Issuer({"banners": []}, MemoryTokenStore())


def test_no_number_of_a_private_key_is_printed(issuer: Issuer) -> None:
    """Not even by a debugger or a logger that shows the values of variables."""
    shown = repr(vars(issuer))
    numbers = KEY.private_numbers()

    assert VECTORS["key"]["id"] in shown
    for secret in (numbers.p, numbers.q, numbers.dmp1, numbers.dmq1, numbers.iqmp):
        assert str(secret) not in shown


def _uniform(values: Iterable[int], cells: int = 16) -> float:
    """Pearson's statistic of numbers below N against the uniform distribution."""
    counts = [0] * cells
    for value in values:
        counts[value * cells // N] += 1
    expected = sum(counts) / cells
    return sum((count - expected) ** 2 / expected for count in counts)


def test_what_the_issuer_sees_is_uniform_whatever_the_message() -> None:
    """200 tokens, half of them for one and the same report: leading bits as of random numbers.

    A false alarm of either test has probability 1e-6 over the seed; the seed is fixed.
    """
    draws = random.Random(9474)
    same = message(BATCH, bytes(16))
    of_one = [int.from_bytes(blind(PUBLIC, same, draws.randbytes)[0]) for _ in range(100)]
    others = [message(BATCH, draws.randbytes(16)) for _ in range(100)]
    of_many = [int.from_bytes(blind(PUBLIC, one, draws.randbytes)[0]) for one in others]
    limit = chi2.isf(1e-6, 15)

    assert len({*of_one, *of_many}) == 200
    assert _uniform(of_one) < limit
    assert _uniform(of_many) < limit


def test_every_token_fits_every_request() -> None:
    """The issuer keeps all it saw, and later sees all tokens: each pairing is as likely.

    For each request and each token there is exactly one blinding factor that would have led from
    one to the other, and factors are drawn uniformly. Here it is computed for all pairs.
    """
    d = KEY.private_numbers().d
    seen = []
    tokens = []
    for number in range(20):
        signed = message(BATCH, number.to_bytes(16))
        blinded, secret = blind(PUBLIC, signed)
        signature = pow(int.from_bytes(blinded), d, N)
        seen.append((int.from_bytes(blinded), signature))
        tokens.append(int.from_bytes(finalize(PUBLIC, signed, signature.to_bytes(256), secret)))
    for blinded_number, signature in seen:
        for token in tokens:
            factor = signature * pow(token, -1, N) % N
            encoded = pow(token, 65537, N)

            assert blinded_number == encoded * pow(factor, 65537, N) % N


async def test_the_example_issuer(issuer: Issuer) -> None:
    """Over HTTP: the login decides who asks; each refusal has its status."""
    signed, blinded, secret = fresh()
    asked = {"experiment": "banners", "key": key_id(PUBLIC), "blinded": encode_token(blinded)}
    other = {**asked, "blinded": encode_token(fresh()[1])}
    async with TestClient(TestServer(application(issuer))) as client:

        async def post(body: object, user: str = "ann", **options: object) -> tuple[int, dict]:
            cookie = {"Cookie": f"user={user}"} if user else {}
            answer = await client.post("/token", headers=cookie, **(options or {"json": body}))
            return answer.status, await answer.json()

        assert 401 == (await post(asked, user=""))[0]
        assert 415 == (await post(None, data=orjson.dumps(asked)))[0]
        for wrong in ([], {}, {**asked, "blinded": "x"}, {**asked, "blinded": 1}, 7):
            assert 400 == (await post(wrong))[0]
        assert 404 == (await post({**asked, "experiment": "footers"}))[0]
        assert 422 == (await post({**asked, "key": "another"}))[0]
        status, answer = await post(asked)
        signature = decode_token(answer["signature"])
        assert (200, answer) == (status, (await post(asked))[1])
        assert (409, {"error": "spent"}) == await post(other)

    assert finalize(PUBLIC, signed, signature, secret)
