"""Asking a running server how it is."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onebit.running import Running

_CONNECT_S, _ANSWER_S = 3.0, 10.0
_MAX_BYTES = 32 << 20  # a thousand models take 2 MB


def find(url: str | None) -> Running:
    """The running server with this address; without one, the newest. Raises NoServer."""
    from onebit import paths
    from onebit.errors import NoServer
    from onebit.running import servers

    there = servers()
    if url is not None:
        there = [server for server in there if server.note.url == plain(url)]
    if not there:
        raise NoServer(
            f"no server of yours runs{f' at {plain(url)}' if url else ''} (looked in {paths.run_root()})",
            hint="start one with `onebit serve`; of somebody else's, or on another machine, `onebit status --url URL`"
            " can tell",
        )
    return there[0]


def address(url: str | None) -> str:
    """The address to ask: the one given, else that of the newest server of this user. Raises NoServer."""
    return plain(url) if url is not None else find(None).note.url


def plain(url: str) -> str:
    """`host:8080/v1/` as `http://host:8080`."""
    text = url.strip().rstrip("/").removesuffix("/v1")
    return text if "://" in text else f"http://{text}"


def fetch(base: str) -> dict[str, Any]:
    """What /v1/engines says. Raises NoServer: it does not answer, or not as a server of ours."""
    import requests

    from onebit.errors import NoServer

    key = os.environ.get("ONEBIT_API_KEY", "").split(",")[0].strip()
    with requests.Session() as session:
        session.trust_env = False  # no proxy between this machine and itself, no passwords from ~/.netrc
        try:
            response = session.get(
                f"{base}/v1/engines",
                headers={"Authorization": f"Bearer {key}"} if key else {},
                timeout=(_CONNECT_S, _ANSWER_S),
                stream=True,
                allow_redirects=False,  # the key is for this server only
            )
            with response:
                body = response.raw.read(_MAX_BYTES, decode_content=True)
        except (requests.RequestException, OSError, ValueError) as error:
            raise NoServer(f"{base} does not answer: {_reason(error)}", hint="does it run? --url says where") from None
    if response.status_code == 401:
        fix = "it is not one of this server's keys" if key else "set ONEBIT_API_KEY to one of its keys"
        raise NoServer(f"{base} wants an API key", hint=fix)
    try:
        value = json.loads(body)
        if response.status_code == 200 and isinstance(value["data"], list) and isinstance(value["memory"], dict):
            return dict(value)
    except (ValueError, KeyError, TypeError):
        pass
    raise NoServer(f"{base} answers {response.status_code}, but not as an onebit server would", hint="see --url")


def _reason(error: Exception) -> str:
    """The innermost cause: requests wraps `Connection refused` into 200 characters."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return "it took too long" if "timed out" in str(error).lower() else type(error).__name__
