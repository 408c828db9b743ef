"""Admission tokens: what a verifier takes, and that it takes nothing else."""

import os
from pathlib import Path

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from producers.web.make_token_vectors import FILE, private_key
from stream_app.errors import ConfigurationError, InvalidInput
from stream_app.wire.token import (
    HASH,
    PADDING,
    Verifier,
    decode_token,
    encode_token,
    load_verifiers,
    message,
)
from stream_app.wire.token_keys import generate, key_id, parse_public_key, read_public_key

KEY = private_key()
OTHER = rsa.generate_private_key(65537, 2048)
BATCH = "1.ajBGkDPu9CTkwObEvtE2O9S1QY4wybwxRAI0rBmNT5o"
REPORT = "000102030405060708090a0b0c0d0e0f"
VECTORS = orjson.loads(FILE.read_bytes())
RFC = orjson.loads((Path(__file__).parents[1] / "web" / "rfc9474.json").read_bytes())


def token(key: rsa.RSAPrivateKey = KEY, batch: str = BATCH, report: str = REPORT) -> bytes:
    return key.sign(message(batch, report), PADDING, HASH)


def verifier(*keys: rsa.RSAPrivateKey) -> Verifier:
    return Verifier("banners", [key.public_key() for key in keys or (KEY,)])


def pem_file(path: Path, key: RSAPublicKey | ec.EllipticCurvePublicKey) -> Path:
    path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def test_the_message_is_label_batch_and_report() -> None:
    """The report id as bytes and as text are the same."""
    expected = b"shufflebandit token v1\0" + BATCH.encode() + REPORT.encode()

    assert expected == message(BATCH, REPORT)
    assert expected == message(BATCH, bytes.fromhex(REPORT))


@pytest.mark.parametrize(
    ("batch", "report"),
    [
        (BATCH, REPORT.upper()),
        (BATCH, REPORT[:-1]),
        (BATCH, REPORT + "\n"),
        (BATCH, bytes(15)),
        (BATCH, bytes(32)),
        (BATCH + "\n", REPORT),
        (BATCH[:-1], REPORT),
        (BATCH[1:], REPORT),
        ("1" * 16 + BATCH[1:], REPORT),
        ("", ""),
        ("١" + BATCH[1:], REPORT),
    ],
)
def test_malformed_ids_have_no_message(batch: str, report: bytes | str) -> None:
    """So no token fits them: one way to write an id, and one only."""
    with pytest.raises(InvalidInput):
        message(batch, report)
    assert not verifier().verify(batch, report, token())


def test_a_token_fits_its_batch_report_and_key_only() -> None:
    """Another batch, report or key: refused."""
    good = token()

    assert verifier().verify(BATCH, REPORT, good)
    assert verifier().verify(BATCH, bytes.fromhex(REPORT), good)
    assert verifier().admits(BATCH, REPORT, encode_token(good))
    assert not verifier().verify("2" + BATCH[1:], REPORT, good)
    assert not verifier().verify(BATCH, "f" * 32, good)
    assert not verifier(OTHER).verify(BATCH, REPORT, good)


def test_two_keys_are_valid_while_keys_change() -> None:
    """Whichever of them signed; of different sizes, too."""
    larger = rsa.generate_private_key(65537, 3072)
    both = verifier(OTHER, KEY, larger)

    assert all(both.verify(BATCH, REPORT, token(key)) for key in (OTHER, KEY, larger))
    assert {342, 512} == {len(encode_token(token(key))) for key in (OTHER, KEY, larger)}


def test_signatures_of_another_kind_are_refused() -> None:
    """Another salt length, another hash: not the scheme, though the key is right."""
    signed = message(BATCH, REPORT)
    for salt_length, made_with in ((32, SHA384()), (0, SHA384()), (48, SHA256())):
        other = KEY.sign(signed, PSS(mgf=MGF1(made_with), salt_length=salt_length), made_with)

        assert not verifier().verify(BATCH, REPORT, other)


def test_a_token_plus_the_modulus_is_refused() -> None:
    """It would be the same number to whoever forgets the check of the range."""
    n = KEY.public_key().public_numbers().n
    small = next(
        value
        for value in (int.from_bytes(token()) for _ in range(200))
        if (value + n).bit_length() <= 2048
    )

    assert verifier().verify(BATCH, REPORT, small.to_bytes(256))
    assert not verifier().verify(BATCH, REPORT, (small + n).to_bytes(256))


@given(st.binary(max_size=600))
def test_whatever_comes_as_a_token_is_refused(junk: bytes) -> None:
    """No exception, and no admission."""
    assert not verifier().verify(BATCH, REPORT, junk)


@given(st.text(max_size=700) | st.text("AZaz09-_=+/ ", min_size=340, max_size=344))
def test_whatever_comes_as_text_is_decoded_in_one_way_or_refused(text: str) -> None:
    """What is decoded is written so and not otherwise."""
    try:
        decoded = decode_token(text)
    except InvalidInput:
        assert not verifier().admits(BATCH, REPORT, text)
    else:
        assert encode_token(decoded) == text


@pytest.mark.parametrize("size", [256, 384, 512])
def test_text_and_bytes_are_each_others(size: int) -> None:
    """For every key size."""
    raw = os.urandom(size)

    assert raw == decode_token(encode_token(raw))


def test_the_vectors() -> None:
    """The file's tokens are taken, its others not."""
    ours = Verifier("vectors", [parse_public_key(VECTORS["key"]["public"].encode(), "vectors")])

    assert all(ours.admits(one["batch"], one["id"], one["token"]) for one in VECTORS["tokens"])
    assert [] == [
        one["why"]
        for one in VECTORS["refused"]
        if ours.admits(one["batch"], one["id"], one["token"])
    ]
    assert VECTORS["key"]["id"] == key_id(KEY.public_key())


def test_the_vector_of_the_rfc_is_a_signature_of_the_kind_that_we_verify() -> None:
    """RFC 9474, A.3: raises if it were not."""
    key = RSAPublicNumbers(int(RFC["e"], 16), int(RFC["n"], 16)).public_key()

    key.verify(bytes.fromhex(RFC["sig"]), bytes.fromhex(RFC["msg"]), PADDING, HASH)


def test_keys_are_generated_once_and_for_their_owner(tmp_path: Path) -> None:
    """The private half is the owner's alone; a second time nothing is overwritten."""
    made = generate(tmp_path / "new", "banners")
    before = made.private.read_bytes()

    assert 0o600 == made.private.stat().st_mode & 0o777
    assert 2048 == read_public_key(made.public, "tokens.keys").key_size
    with pytest.raises(ConfigurationError, match=r"banners\.private\.pem: exists already"):
        generate(tmp_path / "new", "banners")
    assert before == made.private.read_bytes()


@pytest.mark.parametrize("experiment", ["", "../up", "a/b", "Banners", "a\n", "x" * 65])
def test_only_names_of_experiments_become_files(tmp_path: Path, experiment: str) -> None:
    """No path gets in by the name."""
    with pytest.raises(ConfigurationError, match="experiment = "):
        generate(tmp_path, experiment)
    assert [] == list(tmp_path.iterdir())


def test_verifiers_by_experiment(tmp_path: Path) -> None:
    """A key is taken for its experiment and for no other; without a setting nobody needs tokens."""
    mine = pem_file(tmp_path / "mine.pem", KEY.public_key())
    new = pem_file(tmp_path / "new.pem", rsa.generate_private_key(65537, 2048).public_key())
    theirs = pem_file(tmp_path / "theirs.pem", OTHER.public_key())
    found = load_verifiers(f"banners={mine}, banners={new},banners={mine},footers={theirs},")

    assert {} == load_verifiers("")
    assert {"banners", "footers"} == set(found)
    assert found["banners"].verify(BATCH, REPORT, token())
    assert not found["footers"].verify(BATCH, REPORT, token())
    assert found["footers"].verify(BATCH, REPORT, token(OTHER))


def test_one_key_for_two_experiments_is_refused(tmp_path: Path) -> None:
    """A signature for one would be a token of the other."""
    path = pem_file(tmp_path / "key.pem", KEY.public_key())
    with pytest.raises(ConfigurationError, match="the key of experiment banners"):
        load_verifiers(f"banners={path},footers={path}")


def test_unusable_key_files_are_one_line(tmp_path: Path) -> None:
    """Which setting, which value, what to do."""
    private = generate(tmp_path, "banners").private
    junk = tmp_path / "junk.pem"
    junk.write_text("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
    curve = ec.generate_private_key(ec.SECP256R1()).public_key()
    small = rsa.generate_private_key(65537, 1024).public_key()  # noqa: S505
    cubed = rsa.generate_private_key(3, 2048).public_key()
    for path, problem in (
        (tmp_path / "none.pem", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (private, "is a private key"),
        (junk, "not a public key in PEM"),
        (pem_file(tmp_path / "curve.pem", curve), "not an RSA key"),
        (pem_file(tmp_path / "small.pem", small), "of 1024 bits"),
        (pem_file(tmp_path / "cubed.pem", cubed), "exponent must be 65537"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            load_verifiers(f"banners={path}")

        assert str(caught.value).startswith(f"tokens.keys = '{path}': ")
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("entry", ["banners", "=file", "banners="])
def test_a_setting_without_file_or_name_is_refused(entry: str) -> None:
    """It never means that no token is needed."""
    with pytest.raises(ConfigurationError, match="must be experiment=file"):
        load_verifiers(entry)


def test_too_many_keys_are_refused() -> None:
    """Each splits the crowd in which a user is hidden; none at all would verify nothing."""
    with pytest.raises(ConfigurationError, match="5 keys; give 1 to 4"):
        Verifier("banners", [KEY.public_key()] * 5)
    with pytest.raises(ConfigurationError, match="0 keys"):
        Verifier("banners", [])
