"""Writes token_vectors.json: what a client or an issuer in any language must compute.

    python -m producers.web.make_token_vectors

key        a key that everybody knows: for tests only
tokens     ids to message, blinded message, the issuer's signature and the token; salt and blinding
           factor, else drawn, are given. Numbers are in hex, as long as the modulus.
refused    tokens that a verifier with this key must not take, and why

RFC 9474, appendix A.3, has a vector of the scheme itself.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.rsa import (
    RSAPrivateKey,
    RSAPrivateNumbers,
    RSAPublicNumbers,
    rsa_crt_dmp1,
    rsa_crt_dmq1,
    rsa_crt_iqmp,
)
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from producers.tokens import blind, finalize, key_id, message
from stream_app.wire.token import encode_token
from stream_app.wire.token_keys import EXPONENT

FILE = Path(__file__).with_name("token_vectors.json")
# Drawn once for this file. They are public: a key for tests only.
_P = int(
    "f1ac21c09818520aaf923356f4fdbe15b79a34c03865e6bf9cdd0d1ccce8cc80"
    "05ceb5f54ed91fbb0fb3f26f364a180318f20536abdcf409dff83dae9ef094a2"
    "4ba40e104dbe31b9a15fbd619fe8bd983a456066fb07b23d95200395e0d8a419"
    "0e4ac2aa01e49440847ecc2f249419bbaa00452eecbf70b13176c537bcf61d11",
    16,
)
_Q = int(
    "c7517ff4899c83f99c23265ba94fec456fde1148fd2b066cd604540d3e148a22"
    "ca54296fb10f5ead69a20d513d06aee7e3b93448aea6e0294d3cb2dedef1a23d"
    "bf060b789b9f1eb0876df6e66e1128e1e5a3d5c075515673fb9a799064199525"
    "309cd17c83ca653ab3f0f4ba27bcddea3d70a86032eb2991f84b5272a9fbcb59",
    16,
)
# Bytes of the modulus.
_SIZE = 256
# Of base64url, in its order.
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
# A batch id is a hash, so any 43 characters do; the sequence has from 1 to 15 digits.
_BATCHES = (
    "1.ajBGkDPu9CTkwObEvtE2O9S1QY4wybwxRAI0rBmNT5o",
    "0.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "999999999999999.-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_8",
)
_REPORTS = ("000102030405060708090a0b0c0d0e0f", "ffffffffffffffffffffffffffffffff")


def private_key() -> RSAPrivateKey:
    """The key of the vectors, which everybody knows."""
    d = pow(EXPONENT, -1, (_P - 1) * (_Q - 1))
    return RSAPrivateNumbers(
        p=_P,
        q=_Q,
        d=d,
        dmp1=rsa_crt_dmp1(d, _P),
        dmq1=rsa_crt_dmq1(d, _Q),
        iqmp=rsa_crt_iqmp(_P, _Q),
        public_numbers=RSAPublicNumbers(EXPONENT, _P * _Q),
    ).private_key()


def _key() -> dict[str, str]:
    public = private_key().public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return {
        "p": f"{_P:x}",
        "q": f"{_Q:x}",
        "n": f"{_P * _Q:x}",
        "e": f"{EXPONENT:x}",
        "public": pem.decode(),
        "id": key_id(public),
    }


def _tokens() -> Iterator[dict[str, str]]:
    public = private_key().public_key()
    n = _P * _Q
    d = pow(EXPONENT, -1, (_P - 1) * (_Q - 1))
    draws = random.Random(9474)  # noqa: S311 the vectors are to be the same each time
    for batch in _BATCHES:
        for report in _REPORTS:
            salt = draws.randbytes(48)
            factor = draws.randrange(1, n).to_bytes(_SIZE)
            drawn = iter((salt, factor))
            signed = message(batch, report)
            blinded, secret = blind(public, signed, lambda _, drawn=drawn: next(drawn))  # type: ignore[misc]
            signature = pow(int.from_bytes(blinded), d, n).to_bytes(_SIZE)
            token = finalize(public, signed, signature, secret)
            yield {
                "batch": batch,
                "id": report,
                "message": signed.hex(),
                "salt": salt.hex(),
                "factor": factor.hex(),
                "blinded": blinded.hex(),
                "secret": secret.hex(),
                "signature": signature.hex(),
                "token": encode_token(token),
            }


def _refused(good: dict[str, str]) -> Iterator[dict[str, str]]:
    batch = good["batch"]
    report = good["id"]
    token = good["token"]
    after = _ALPHABET[_ALPHABET.index(token[-1]) + 1]  # the same byte, a spare bit set
    flipped = "A" if token[0] != "A" else "B"
    cases = (
        ("another batch", _BATCHES[1], report, token),
        ("another report", batch, _REPORTS[1], token),
        ("one character changed", batch, report, flipped + token[1:]),
        ("a character less", batch, report, token[:-1]),
        ("a character more", batch, report, token + "A"),
        ("padded", batch, report, token + "=="),
        ("bits after the last byte", batch, report, token[:-1] + after),
        ("base64 of the other alphabet", batch, report, token.replace("-", "+").replace("_", "/")),
        ("upper case in the report id", batch, report.upper(), token),
        ("zero", batch, report, encode_token(bytes(_SIZE))),
        ("one", batch, report, encode_token((1).to_bytes(_SIZE))),
        ("the issuer's signature, still blinded", batch, report, _text(good["signature"])),
        ("the modulus", batch, report, encode_token((_P * _Q).to_bytes(_SIZE))),
    )
    for why, of_batch, of_report, text in cases:
        yield {"why": why, "batch": of_batch, "id": of_report, "token": text}


def _text(digits: str) -> str:
    return encode_token(bytes.fromhex(digits))


def vectors() -> dict[str, Any]:
    """All of them."""
    tokens = list(_tokens())
    return {"version": 1, "key": _key(), "tokens": tokens, "refused": list(_refused(tokens[0]))}


def dump() -> bytes:
    """The file's content."""
    return orjson.dumps(vectors(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    FILE.write_bytes(dump())
