"""By what a client shows who it is where the kernel cannot: the token in the file that ``MOIRA_TOKEN_FILE`` names.

It is shown to the service alone. Anybody can listen on a port of this machine while the service is not there, so the
kernel is asked first whose process listens.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import sys
from pathlib import Path
from typing import List, Mapping, Optional

from moira._errors import MoiraError

__all__ = ["bearer", "confirm", "read_token"]

_LISTEN = "0A"


def read_token(path: str) -> str:
    """The token in a file that nobody else can read."""
    try:
        with open(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(4096).strip()
    except OSError as error:
        raise MoiraError(f"{path}: cannot read the token: {error.strerror}") from error
    if mode & 0o077:
        raise MoiraError(f"{path}: others may read or change this token: make it yours alone with `chmod 600`")
    if not text.startswith("moira") or not text.isascii() or not text.isprintable() or " " in text:
        raise MoiraError(f"{path}: expected a token as `moira token create` prints it")
    return text


def bearer(host: str, port: int, data_dir: Optional[Path], environ: Mapping[str, str] = os.environ) -> Optional[str]:
    """The token to show at this address, or nothing if there is none. An error if it must not be shown there.

    Before it is sent, ``confirm`` must agree.
    """
    path = environ.get("MOIRA_TOKEN_FILE")
    if not path:
        return None
    _trusted_listeners(host, port, data_dir)
    return read_token(path)


def confirm(host: str, port: int, data_dir: Optional[Path], environ: Mapping[str, str] = os.environ) -> None:
    """Whether the token may go over a connection that has been made.

    Somebody accepted it, so somebody must be seen to listen: an address that is not understood here must not look like
    nobody.
    """
    if environ.get("MOIRA_TOKEN_FILE") and not _trusted_listeners(host, port, data_dir):
        raise _refusal(host, port, "the kernel does not say whose process listens there")


def _refusal(host: str, port: int, reason: str) -> MoiraError:
    return MoiraError(f"no token is sent to http://{host}:{port}: {reason}")


def _trusted_listeners(host: str, port: int, data_dir: Optional[Path]) -> List[int]:
    """Who listens there; an error if one of them must not be told the token."""
    addresses = _loopback(host)
    if not addresses:
        raise _refusal(host, port, "it is not this machine, and there is no TLS yet")
    trusted = {0}
    if data_dir is not None and data_dir.exists():
        trusted.add(data_dir.stat().st_uid)
    try:
        found = _listeners(addresses, port)
    except OSError as error:
        raise _refusal(host, port, f"cannot see whose process listens there: {error}") from error
    for uid in found:
        if uid not in trusted:
            stranger = f"a process of user {uid} listens there"
            raise _refusal(host, port, f"{stranger}, who is neither root nor the owner of the service's data directory")
    return found


def _loopback(host: str) -> List[str]:
    """The addresses a name of this machine stands for; none if it is a name of another one."""
    if host == "localhost":
        return ["127.0.0.1", "::1"]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return []
    # An address of IPv4 in the clothes of IPv6 is never needed; versions of Python disagree what it is.
    is_plain = address.version == 4 or address == ipaddress.ip_address("::1")
    return [str(address)] if is_plain and address.is_loopback else []


def _listeners(addresses: List[str], port: int) -> List[int]:
    places = {_written(form, port) for address in [*addresses, "0.0.0.0", "::"] for form in _forms(address)}
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:  # As on a kernel without IPv6.
            continue
        rows = (line.split() for line in lines)
        found += [int(row[7]) for row in rows if len(row) > 7 and row[3] == _LISTEN and row[1] in places]
    return found


def _forms(address: str) -> List[str]:
    """The addresses on which a socket takes connections to this one: one for IPv6 can take those of IPv4 too."""
    return [address] if ":" in address else [address, f"::ffff:{address}"]


def _written(address: str, port: int) -> str:
    """As the kernel writes addresses: words in the machine's own byte order, in hexadecimal."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
