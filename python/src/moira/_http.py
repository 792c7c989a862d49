"""HTTP/1.1 as far as the service speaks it, over a Unix socket or TCP, blocking or not.

Requests are written and answers are read by the same code for both; only moving the bytes differs. Every request has a
connection of its own: on one machine that costs next to nothing, and none is ever found closed by the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping, Optional, Union
from urllib.parse import quote, urlencode

from moira._credentials import bearer, confirm
from moira._errors import MoiraError, ServiceUnavailable

__all__ = ["Address", "Ask", "AsyncIncoming", "Incoming", "Reply", "answer", "answer_async", "path"]

#: How long an answer may take: a decision may be under way, and nobody is served before it is made.
PATIENCE = 120.0

_PIECE = 64 * 1024
_LONGEST_HEAD = 64 * 1024
_LARGEST_REPLY = 256 * 1024 * 1024


@dataclass(frozen=True)
class Address:
    """Where the service is: a socket, or a host and a port."""

    socket: Optional[str] = None
    host: str = "localhost"
    port: int = 0

    @classmethod
    def find(cls, server: Optional[str] = None, environ: Mapping[str, str] = os.environ) -> Address:
        """What is said, or ``MOIRA_SERVER``, or the socket in ``MOIRA_DATA_DIR``, or this user's own."""
        said = server or environ.get("MOIRA_SERVER")
        return cls.parse(said) if said else cls(socket=str(_data_dir(environ) / "moira.sock"))

    @classmethod
    def parse(cls, text: str) -> Address:
        """``unix:/path/to/moira.sock`` or ``http://HOST:PORT``."""
        if text.startswith("unix:"):
            path = text[len("unix:") :]
            path = path[2:] if path.startswith("//") else path
            if path:
                return cls(socket=path)
        elif text.startswith("http://"):
            host, colon, port = text[len("http://") :].rstrip("/").rpartition(":")
            sensible = colon and host and not set(host) & set("/@?# ")
            if sensible and port.isascii() and port.isdigit() and int(port) < 1 << 16:
                return cls(host=host, port=int(port))
        raise ValueError(f"`{text}` is no address of a service: expected unix:/path/to/moira.sock or http://HOST:PORT")

    def __str__(self) -> str:
        return f"unix:{self.socket}" if self.socket else f"http://{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        return "localhost" if self.socket else f"{self.host}:{self.port}"

    @property
    def bare_host(self) -> str:
        return self.host.strip("[]")

    def bearer(self) -> Optional[str]:
        """The token to show there; none on a socket, where the kernel says who we are."""
        return None if self.socket else bearer(self.bare_host, self.port, _known_data_dir())

    def confirm(self) -> None:
        """Makes sure, now that we are connected, that the token may be shown to whom we are connected to."""
        if not self.socket:
            confirm(self.bare_host, self.port, _known_data_dir())


def _known_data_dir() -> Optional[Path]:
    try:
        return _data_dir(os.environ)
    except MoiraError:
        return None


def _data_dir(environ: Mapping[str, str]) -> Path:
    if environ.get("MOIRA_DATA_DIR"):
        return Path(environ["MOIRA_DATA_DIR"])
    state = environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state) / "moira"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".local/state/moira"
    raise MoiraError(
        "cannot tell where the service's socket is: "
        "neither MOIRA_SERVER, MOIRA_DATA_DIR, XDG_STATE_HOME nor HOME is set"
    )


@dataclass(frozen=True)
class Ask:
    """One request. Without patience its answer may take for ever, as that of a log that is followed does."""

    method: str
    path: str
    body: Optional[bytes] = None
    headers: Mapping[str, str] = field(default_factory=dict)
    patience: Optional[float] = PATIENCE

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def encode(self, address: Address) -> bytes:
        headers = {"Host": address.authority, "Connection": "close", "Accept": "application/json, text/plain"}
        token = address.bearer()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if self.body is not None:
            headers.update({"Content-Type": "application/json", "Content-Length": str(len(self.body))})
        headers.update(self.headers)
        lines = [f"{self.method} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError(f"a line break cannot be part of a request: {self}")
        return "\r\n".join([*lines, "", ""]).encode() + (self.body or b"")


def path(*parts: object, **query: Union[str, float, bool, None]) -> str:
    """An address below ``/v1`` of which no part can mean more than it says. What is ``None`` is left out."""
    given = {name: _word(value) for name, value in query.items() if value is not None}
    where = "/v1/" + "/".join(quote(str(part), safe="") for part in parts)
    return f"{where}?{urlencode(given, quote_via=quote)}" if given else where


def _word(value: Union[str, float, bool]) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Reply:
    """One answer, whole."""

    status: int
    body: bytes

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300


class Parser:
    """Reads an answer from pieces that arrive as they please."""

    def __init__(self) -> None:
        self.status: Optional[int] = None
        self.ended = False
        self._waiting = b""
        self._chunked = False
        #: Bytes of the body, or of the chunk, that are still to come; nothing if only the end of the stream ends it.
        self._missing: Optional[int] = None
        #: Whether the line break that ends a chunk is still to come.
        self._behind_chunk = False

    def feed(self, piece: bytes) -> bytes:
        """What of the body has arrived with this piece. An empty one is the end of the stream."""
        if not piece:
            self._end_of_stream()
            return b""
        self._waiting += piece
        while self.status is None:
            if not self._read_head():
                return b""
        return self._chunks() if self._chunked else self._plain()

    def _end_of_stream(self) -> None:
        if self.status is None or self._chunked or self._missing:
            raise EOFError("the answer ended before it was complete")
        self.ended = True

    def _read_head(self) -> bool:
        head, separator, rest = self._waiting.partition(b"\r\n\r\n")
        if not separator:
            if len(self._waiting) > _LONGEST_HEAD:
                raise ValueError("the head of the answer has no end")
            return False
        self._waiting = rest
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, remainder = first.partition(" ")
        code = remainder[:3]
        if not version.startswith("HTTP/1.") or not code.isdigit():
            raise ValueError(f"`{first[:80]}` does not begin an answer")
        if code.startswith("1"):
            return True
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self.status = int(code)
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked and "content-length" in headers:
            self._missing = int(headers["content-length"])
            self.ended = self._missing == 0
        return True

    def _plain(self) -> bytes:
        part = self._part()
        self.ended = self._missing == 0
        return part

    def _chunks(self) -> bytes:
        body = b""
        while not self.ended:
            if self._missing:
                body += self._part()
                self._behind_chunk = not self._missing
            if self._missing or not self._next_chunk():
                break
        return body

    def _next_chunk(self) -> bool:
        """Reads the size of the next chunk; whether it has arrived."""
        start = 2 if self._behind_chunk else 0
        end = self._waiting.find(b"\r\n", start)
        if end < 0:
            return False
        size = self._waiting[start:end].split(b";")[0]
        self._missing, self._waiting, self._behind_chunk = int(size, 16), self._waiting[end + 2 :], False
        self.ended = self._missing == 0
        return True

    def _part(self) -> bytes:
        size = len(self._waiting) if self._missing is None else self._missing
        part, self._waiting = self._waiting[:size], self._waiting[size:]
        if self._missing is not None:
            self._missing -= len(part)
        return part


class Incoming:
    """An answer that is read as it comes."""

    def __init__(self, address: Address, ask: Ask) -> None:
        self._address = address
        self._ask = ask
        self._parser = Parser()
        self._first = b""
        self._until = None if ask.patience is None else time.monotonic() + ask.patience

    def __enter__(self) -> Incoming:
        request = self._ask.encode(self._address)
        with reaching(self._address):
            self._socket = _connected(self._address)
        try:
            self._address.confirm()
            with asking(self._address, self._ask):
                self._socket.sendall(request)
                while self._parser.status is None:
                    self._first = self._parser.feed(self._receive())
        except BaseException:
            self._socket.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    @property
    def status(self) -> int:
        assert self._parser.status is not None
        return self._parser.status

    def read(self) -> bytes:
        """The next piece of the body; nothing at its end."""
        piece, self._first = self._first, b""
        with asking(self._address, self._ask):
            while not piece and not self._parser.ended:
                piece = self._parser.feed(self._receive())
        return piece

    def _receive(self) -> bytes:
        left = None if self._until is None else self._until - time.monotonic()
        if left is not None and left <= 0:
            raise socket.timeout
        self._socket.settimeout(left)
        return self._socket.recv(_PIECE)


def _connected(address: Address) -> socket.socket:
    if address.socket is None:
        return socket.create_connection((address.bare_host, address.port), timeout=PATIENCE)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(address.socket)
    except BaseException:
        connection.close()
        raise
    return connection


class AsyncIncoming:
    """The same without blocking."""

    def __init__(self, address: Address, ask: Ask) -> None:
        self._address = address
        self._ask = ask
        self._parser = Parser()
        self._first = b""
        self._until = None if ask.patience is None else time.monotonic() + ask.patience

    async def __aenter__(self) -> AsyncIncoming:
        request = self._ask.encode(self._address)
        with reaching(self._address):
            self._reader, self._writer = await asyncio.wait_for(_open(self._address), PATIENCE)
        try:
            self._address.confirm()
            with asking(self._address, self._ask):
                self._writer.write(request)
                await asyncio.wait_for(self._writer.drain(), self._ask.patience)
                while self._parser.status is None:
                    self._first = self._parser.feed(await self._receive())
        except BaseException:
            self._writer.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._writer.close()

    @property
    def status(self) -> int:
        assert self._parser.status is not None
        return self._parser.status

    async def read(self) -> bytes:
        """The next piece of the body; nothing at its end."""
        piece, self._first = self._first, b""
        with asking(self._address, self._ask):
            while not piece and not self._parser.ended:
                piece = self._parser.feed(await self._receive())
        return piece

    async def _receive(self) -> bytes:
        left = None if self._until is None else max(0.0, self._until - time.monotonic())
        return await asyncio.wait_for(self._reader.read(_PIECE), left)


async def _open(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.socket is None:
        return await asyncio.open_connection(address.bare_host, address.port)
    return await asyncio.open_unix_connection(address.socket)


def answer(address: Address, ask: Ask) -> Reply:
    """Asks, and waits for the whole answer, whatever it says."""
    with Incoming(address, ask) as incoming:
        return whole(incoming)


async def answer_async(address: Address, ask: Ask) -> Reply:
    """The same without blocking."""
    async with AsyncIncoming(address, ask) as incoming:
        return await whole_async(incoming)


def whole(incoming: Incoming) -> Reply:
    """Reads an answer to its end."""
    body = bytearray()
    while piece := incoming.read():
        body += piece
        _check_size(body)
    return Reply(incoming.status, bytes(body))


async def whole_async(incoming: AsyncIncoming) -> Reply:
    """The same without blocking."""
    body = bytearray()
    while piece := await incoming.read():
        body += piece
        _check_size(body)
    return Reply(incoming.status, bytes(body))


def _check_size(body: bytearray) -> None:
    if len(body) > _LARGEST_REPLY:
        raise MoiraError(f"the service answered with more than {_LARGEST_REPLY >> 20} MiB")


@contextlib.contextmanager
def reaching(address: Address) -> Iterator[None]:
    """What goes wrong before anything was asked."""
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as error:
        what_to_do = "start one with `moira serve`, or say where it is with MOIRA_SERVER"
        raise ServiceUnavailable(f"no service at {address}: {what_to_do}") from error
    except (asyncio.TimeoutError, OSError) as error:
        raise ServiceUnavailable(f"cannot reach the service at {address}: {error or 'no answer'}") from error


@contextlib.contextmanager
def asking(address: Address, ask: Ask) -> Iterator[None]:
    """What goes wrong once the service may have heard."""
    try:
        yield
    except (asyncio.TimeoutError, socket.timeout) as error:
        message = f"the service at {address} did not answer {ask} within {ask.patience:g} s"
        raise ServiceUnavailable(message, asked=True) from error
    except (EOFError, OSError) as error:
        message = f"the connection to the service at {address} broke while asking for {ask}"
        raise ServiceUnavailable(message, asked=True) from error
    except ValueError as error:
        raise MoiraError(f"the service at {address} answered {ask} with what is no answer: {error}") from error
