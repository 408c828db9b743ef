"""A small issuer of tokens: what a product adds to its own backend, here a server of its own.

    shufflebandit tokens keygen shop
    python -m producers.web.demo.issuer shop.private.pem

The cookie `user` stands for the product's own login; anybody may set it, so this is for trying.
"""

import asyncio
import base64
import sys

from aiohttp import web

from producers.tokens import FileTokenStore, Issuer, TokenRefusal, TokenRefused

EXPERIMENT = "shop"
# What the page can do about it: producers/web/TOKENS.md, "Errors".
STATUS = {
    TokenRefusal.MALFORMED: 400,
    TokenRefusal.UNKNOWN_EXPERIMENT: 404,
    TokenRefusal.SPENT: 409,
    TokenRefusal.UNKNOWN_KEY: 422,
}


def application(issuer: Issuer) -> web.Application:
    """POST /token: {experiment, key, blinded} to {signature}."""

    async def sign(request: web.Request) -> web.Response:
        user = request.cookies.get("user")
        if not user:
            return web.json_response({"error": "not logged in"}, status=401)
        # Other sites' pages can send with these cookies, but not with this type unless allowed.
        if request.content_type != "application/json":
            return web.json_response({"error": "send JSON"}, status=415)
        try:
            asked = await request.json()
            blinded = base64.urlsafe_b64decode(asked["blinded"] + "==")
            experiment = asked["experiment"]
            key = asked.get("key")
            signature = await asyncio.to_thread(issuer.sign, experiment, user, blinded, key)
        except TokenRefused as refused:
            return web.json_response({"error": refused.reason}, status=STATUS[refused.reason])
        except (ValueError, KeyError, TypeError, AttributeError):
            return web.json_response({"error": TokenRefusal.MALFORMED}, status=400)
        text = base64.urlsafe_b64encode(signature).decode().rstrip("=")
        return web.json_response({"signature": text})

    made = web.Application(client_max_size=4096)
    made.router.add_post("/token", sign)
    return made


if __name__ == "__main__":
    store = FileTokenStore("tokens.sqlite")
    web.run_app(application(Issuer({EXPERIMENT: sys.argv[1]}, store)), host="127.0.0.1", port=8081)
