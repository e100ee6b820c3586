"""A form with one file, read as it comes: fields are kept, the bytes of the file go on at once."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from nightshift.producer.serve.errors import ApiError

MOST_FIELD_BYTES = 4096
MOST_NAME = 1000
"""Characters of the name of a file."""

MOST_FIELDS = 16

Sink = Callable[[bytes], Awaitable[None]]


class FormWithFile:
    """Reads a multipart form whose file has this `name`. `fields` has the text fields, `filename` the
    name of the file.

    `open_file` is awaited at the first byte of the file and gives what takes its bytes; the next piece
    of the form is read once the sink has taken the one before.
    """

    def __init__(
        self,
        headers: Mapping[str, str],
        open_file: Callable[[], Awaitable[Sink]],
        name: str = "file",
    ) -> None:
        kind, options = parse_options_header(headers.get("content-type"))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise ApiError(400, "the body is no multipart/form-data", code="invalid_multipart")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.size = 0
        self._open_file, self._wanted = open_file, name
        self._sink: Sink | None = None
        self._events: list[tuple[str, bytes]] = []
        self._header_name, self._header_value = b"", b""
        self._headers: dict[bytes, bytes] = {}
        self._is_whole = False
        self._name, self._is_file, self._value = "", False, bytearray()
        try:
            self._parser = MultipartParser(options[b"boundary"], self._callbacks())
        except FormParserError as error:
            raise _broken(error) from error

    async def read(self, pieces: AsyncIterator[bytes]) -> None:
        """Reads the form to its end; ApiError 400 for what is no form, or is cut off."""
        try:
            async for piece in pieces:
                if piece:
                    self._parser.write(piece)
                    await self._work()
            self._parser.finalize()
            await self._work()
        except FormParserError as error:
            raise _broken(error) from error
        except ClientDisconnect as error:
            raise ApiError(400, "the client left in the middle of its form") from error
        if not self._is_whole:
            raise ApiError(400, "the form is cut off", code="invalid_multipart")

    def _callbacks(self) -> Any:
        def note(what: str) -> Callable[..., None]:
            def keep(data: bytes = b"", start: int = 0, end: int = 0) -> None:
                self._events.append((what, data[start:end]))

            return keep

        data = ("part_data", "header_field", "header_value")
        bare = ("part_begin", "part_end", "header_end", "headers_finished", "end")
        return {f"on_{name}": note(name) for name in (*data, *bare)}

    async def _work(self) -> None:
        events, self._events = self._events, []
        for what, data in events:
            if what == "part_data":
                await self._data(data)
            elif what == "header_field":
                self._header_name += data
            elif what == "header_value":
                self._header_value += data
            elif what == "header_end":
                self._headers[self._header_name.lower()] = self._header_value
                self._header_name, self._header_value = b"", b""
            elif what == "headers_finished":
                await self._begin()
            elif what == "end":
                self._is_whole = True
            elif what == "part_end" and not self._is_file:
                self.fields[self._name] = self._value.decode("utf-8", "replace")

    async def _begin(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._headers = {}
        self._name = _unescaped(options.get(b"name", b"").decode("utf-8", "replace"))
        self._is_file, self._value = b"filename" in options, bytearray()
        if len(self.fields) >= MOST_FIELDS:
            raise ApiError(400, "the form has too many fields", code="invalid_multipart")
        if not self._is_file:
            return
        if self._sink is not None:
            raise ApiError(400, "the form has more than one file", param=self._wanted)
        if self._name != self._wanted:
            said = f"the file is called {self._name[:50]!r}, not {self._wanted}"
            raise ApiError(400, said, param=self._wanted)
        self.filename = _unescaped(options[b"filename"].decode("utf-8", "replace"))
        if len(self.filename) > MOST_NAME or "\0" in self.filename:
            said = f"the name of the file has a NUL, or more than {MOST_NAME:,} characters"
            raise ApiError(400, said, param=self._wanted)
        self._sink = await self._open_file()

    async def _data(self, data: bytes) -> None:
        if not self._is_file:
            self._value += data
            if len(self._value) > MOST_FIELD_BYTES:
                raise ApiError(400, f"the field {self._name[:50]!r} is too long", param=self._name)
            return
        assert self._sink is not None
        self.size += len(data)
        await self._sink(data)


ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}
"""How clients encode the three characters that a form's names must not contain (HTML, multipart/form-data). They
escape nothing else, the percent sign included.
"""


def _unescaped(name: str) -> str:
    """The name of a field or file as the client has it."""
    return re.sub(
        "|".join(ESCAPES), lambda found: ESCAPES[found[0].upper()], name, flags=re.IGNORECASE
    )


def _broken(error: FormParserError) -> ApiError:
    return ApiError(400, f"the form is broken: {error}", code="invalid_multipart")
