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

__all__ = ["bearer", "read_token"]

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
    """The token to show at this address, or nothing if there is none. An error if it must not be shown there."""
    path = environ.get("MOIRA_TOKEN_FILE")
    if not path:
        return None
    addresses = _loopback(host)
    if not addresses:
        raise MoiraError(f"no token is sent to http://{host}:{port}: it is not this machine, and there is no TLS yet")
    trusted = {0}
    if data_dir is not None and data_dir.exists():
        trusted.add(data_dir.stat().st_uid)
    for uid in _listeners(addresses, port):
        if uid not in trusted:
            raise MoiraError(
                f"no token is sent to http://{host}:{port}: a process of user {uid} listens there, "
                "who is neither root nor the owner of the service's data directory"
            )
    return read_token(path)


def _loopback(host: str) -> List[str]:
    """The addresses a name of this machine stands for; none if it is a name of another one."""
    if host == "localhost":
        return ["127.0.0.1", "::1"]
    try:
        return [host] if ipaddress.ip_address(host).is_loopback else []
    except ValueError:
        return []


def _listeners(addresses: List[str], port: int) -> List[int]:
    places = {_written(address, port) for address in [*addresses, "0.0.0.0", "::"]}
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        rows = (line.split() for line in lines)
        found += [int(row[7]) for row in rows if len(row) > 7 and row[3] == _LISTEN and row[1] in places]
    return found


def _written(address: str, port: int) -> str:
    """As the kernel writes addresses: words in the machine's own byte order, in hexadecimal."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = [int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4)]
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
