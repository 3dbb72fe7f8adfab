"""Signing in and out: plain pages without JavaScript, so that they work before sign-in."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Final
from urllib.parse import parse_qs

import anyio.to_thread
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from penstock.console.web.access import SESSION_S, Access, TooManyAttempts
from penstock.console.web.assets import address_of_asset, theme_of
from penstock.console.web.security import SESSION, SESSION_ID, address_of, is_https
from penstock.errors import SignInError

BODY_BYTES: Final = 8 * 1024
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in · Penstock</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="icon" href="{icon}"><link rel="stylesheet" href="{style}"></head>
<body class="login theme-{theme}"><main class="panel login-panel">
<div class="brand"><span class="brand-mark"></span><span class="brand-name">Penstock</span></div>
<h1>Sign in</h1>
<form method="post" action="/login"><input type="hidden" name="next" value="{next}">
<label for="secret">{asked}</label>
<input id="secret" name="secret" type="password" autocomplete="current-password" required autofocus>
<p class="login-error" role="alert">{error}</p>
<button class="button button-primary" type="submit">Sign in</button></form></main></body></html>
"""


def register(app: FastAPI, access: Access, on_sign_out: Callable[[str], None] = lambda id: None) -> None:
    """Declare `/login` and `/logout`. `on_sign_out` is called with the id of the ended session."""

    @app.get("/login")
    def show(request: Request) -> Response:
        next_page = safe_next(request.query_params.get("next", "/"))
        if request.scope.get(SESSION) is not None:
            return RedirectResponse(next_page, status_code=303)
        return _page(request, access, next_page)

    @app.post("/login")
    async def sign_in(request: Request) -> Response:
        form = await _form_in(request)
        if form is None:
            return _page(request, access, "/", "That is too long for a password.", 413)
        next_page = safe_next(form.get("next", "/"))
        try:
            id = await anyio.to_thread.run_sync(access.sign_in, form.get("secret", ""), address_of(request.scope))
        except TooManyAttempts as error:
            answer = _page(request, access, next_page, f"{str(error).capitalize()}.", 429)
            answer.headers["retry-after"] = str(max(1, round(error.wait_s)))
            return answer
        except SignInError as error:
            return _page(request, access, next_page, f"{str(error).capitalize()}.", 403)
        answer = RedirectResponse(next_page, status_code=303)
        answer.set_cookie(
            access.cookie,
            id,
            max_age=int(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=is_https(request.scope),
        )
        return answer

    @app.post("/logout")
    async def sign_out(request: Request) -> Response:
        id = request.scope.get(SESSION_ID)
        if id is not None:
            access.sign_out(id)
            on_sign_out(id)
        answer = RedirectResponse("/login", status_code=303)
        answer.delete_cookie(access.cookie, httponly=True, samesite="strict")
        return answer


def safe_next(path: str) -> str:
    """Where to go after signing in: only ever a page of the console."""
    is_ours = path.startswith("/") and not path.startswith(("//", "/\\")) and not any(ord(each) < 32 for each in path)
    return path if is_ours else "/"


def _page(request: Request, access: Access, next_page: str, error: str = "", status: int = 200) -> Response:
    page = _PAGE.format(
        icon=address_of_asset("mark.svg"),
        style=address_of_asset("console.css"),
        theme=theme_of(request).name,
        next=escape(next_page),
        asked="Password" if access.takes_password else "Token",
        error=escape(error),
    )
    return HTMLResponse(page, status_code=status)


async def _form_in(request: Request) -> dict[str, str] | None:
    """The form's fields; None when it is larger than any password."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES:
            return None
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
