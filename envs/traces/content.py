"""The content of a trace file as text: decompressed, decoded, oddities counted."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path

from ..regular_file import check_regular


@dataclass(frozen=True)
class Content:
    """Decoded text of a file.

    Attributes:
        path: for messages.
        text: without byte-order mark, lines end in a newline.
        byte_order_mark: whether there was one.
        crlf: lines that ended in carriage return and newline.
    """

    path: str
    text: str
    byte_order_mark: bool
    crlf: int

    @classmethod
    def read(cls, path: str | Path) -> Content:
        """Reads a plain or gzip-compressed UTF-8 file.

        Raises:
            ValueError: the file cannot be read, is empty, is a damaged gzip file, or is not UTF-8.
        """
        data = read_bytes(path)
        mark = data.startswith(b"\xef\xbb\xbf")
        crlf = data.count(b"\r\n")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{path}, line {line}: is not UTF-8 text") from error
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text.strip():
            raise ValueError(f"{path}: is empty; it must hold at least one request")
        return cls(str(path), text, mark, crlf)


def read_bytes(path: str | Path) -> bytes:
    """Bytes of a plain or gzip-compressed file.

    Raises:
        ValueError: the file cannot be read, or is a damaged gzip file.
    """
    try:
        check_regular(path)
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except EOFError as error:
        line = _whole_lines(data) + 1
        raise ValueError(f"{path}, line {line}: the gzip file is truncated here; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: is a damaged gzip file ({error}); fetch it again") from error


def _whole_lines(packed: bytes) -> int:
    """Lines that a truncated gzip file still holds whole."""
    lines = 0
    while packed:
        member = zlib.decompressobj(wbits=31)
        lines += member.decompress(packed).count(b"\n")
        packed = member.unused_data
    return lines
