"""Where a server under test is asked: any OpenAI-compatible base URL, or one of our own engines' sockets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from onebit.engines.llama_server import Address
from onebit.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address. `base`: the path before `/chat/completions`, usually `/v1`."""

    host: str
    port: int
    base: str = "/v1"
    tls: bool = False
    socket: Path | None = None
    key: str | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """As a table shows it; the key is not in it."""
        if self.socket is not None:
            return str(self.socket)
        usual = 443 if self.tls else 80
        return self.host + ("" if self.port == usual else f":{self.port}") + (self.base if self.base != "/v1" else "")

    @classmethod
    def of_url(cls, url: str, key: str | None = None) -> Endpoint:
        """Read `http://host:8080/v1`. Without a path, `/v1` is meant. Raises ConfigError."""
        hint = "an address is like http://127.0.0.1:8080/v1"
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--url {url}: {error}", hint=hint) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}: not an http(s) address", hint=hint)
        if parts.username or parts.query or parts.fragment:
            raise ConfigError(
                f"--url {parts.hostname}: only host, port and path belong into it",
                hint=f"{hint}; a key goes into --api-key-env",
            )
        if not url.isascii() or any(c.isspace() for c in url):
            raise ConfigError(f"--url {url!r}: write it in plain ASCII", hint=hint)
        tls = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
        return cls(parts.hostname, port or (443 if tls else 80), path or "/v1", tls, None, key)

    @classmethod
    def of_engine(cls, address: Address, key: str) -> Endpoint:
        """One of our own engines, past the router."""
        return cls("127.0.0.1", address.port, "/v1", False, address.socket, key)
