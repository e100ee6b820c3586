"""Images of rows: the bytes or the URI that a row has, as bytes, as a picture, as a data: URL."""

import base64
import binascii
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from common import storage
from common.errors import BadInput, StorageUnavailable

if TYPE_CHECKING:  # Pillow comes with the engines that see; other workers do without
    from PIL.Image import Image as Picture
    from PIL.ImageFile import ImageFile

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""What is decoded: well-tried readers only, and none that starts a program."""

IMAGE_BYTES = 64 * 2**20
"""Largest file of an image."""

IMAGE_PIXELS = 64 * 2**20
"""Most pixels of an image: 200 MB decoded. A file of a few kB may claim any number."""

READ_TRIES = 4
"""Of a URI whose store does not answer, over about ten seconds; then it is the row's error."""

DATA_URI = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
WEB_URI = re.compile(r"https?://", re.IGNORECASE)


class BadImage(ValueError):
    """The image of a row cannot be used; the message says why, in words."""


@dataclass(frozen=True, slots=True)
class Image:
    """What a row's column holds: the bytes of an image file, or a local path, s3://, gs:// or data:
    URI. URIs are held to the operator's allowed `roots`: a submitter's data names them.
    """

    value: bytes | str
    roots: tuple[str, ...] = ()

    def content(self) -> tuple[bytes, str]:
        """The bytes of the file and their MIME type; the header is looked at, nothing is decoded.

        Reads from storage, so not for an event loop. BadImage for whatever cannot be used.
        """
        data = self._bytes()
        with _header(data) as picture:
            return data, str(picture.get_format_mimetype())

    def picture(self) -> "Picture":
        """Decoded and upright: the first frame. BadImage for whatever cannot be used."""
        from PIL import ImageOps

        with _header(self._bytes()) as picture:
            try:
                return ImageOps.exif_transpose(picture)
            except Exception as error:  # a decoder raises what it likes at broken bytes
                raise BadImage(f"the image cannot be decoded ({error})") from error

    def data_url(self) -> str:
        """As remote APIs take it. BadImage for whatever cannot be used."""
        data, mime = self.content()
        return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"

    def _bytes(self) -> bytes:
        if isinstance(self.value, bytes):
            data = self.value
        elif match := DATA_URI.match(self.value):
            try:
                data = base64.b64decode(self.value[match.end() :], validate=True)
            except (binascii.Error, ValueError) as error:
                raise BadImage(f"the data: URI is no base64 ({error})") from error
        else:
            data = self._stored(self.value)
        if len(data) > IMAGE_BYTES:
            raise BadImage(f"the image is larger than {IMAGE_BYTES} bytes")
        return data

    def _stored(self, uri: str) -> bytes:
        if WEB_URI.match(uri):
            raise BadImage(f"{uri[:200]}: images are not fetched from the web; store them first")
        if "://" not in uri and not uri.startswith("/"):
            raise BadImage(f"{uri[:200]!r} is no absolute path and no s3://, gs:// or data: URI")
        try:
            place = storage.resolve(uri)
            storage.check_roots([place], self.roots)
            for attempt in Retrying(
                retry=retry_if_exception(_may_pass),
                wait=wait_random_exponential(multiplier=0.5, max=5),
                stop=stop_after_attempt(READ_TRIES),
                reraise=True,
            ):
                with attempt:
                    return _read(place)
        except FileNotFoundError as error:
            raise BadImage(f"the image {uri[:200]} is not there") from error
        except (BadInput, StorageUnavailable) as error:
            raise BadImage(str(error)) from error
        raise AssertionError("a retry ends with a result or an error")


def _read(place: str) -> bytes:
    """Only a regular file, and one byte more than is allowed at most."""
    size = storage.stat(place).size
    return storage.read_range(place, 0, min(size, IMAGE_BYTES + 1))


def _may_pass(error: BaseException) -> bool:
    """Whether the store may answer later; a file that may not be read never can be."""
    return isinstance(error, StorageUnavailable) and not isinstance(
        error.__cause__, PermissionError
    )


def _header(data: bytes) -> "ImageFile":
    import PIL.Image

    try:
        picture = PIL.Image.open(io.BytesIO(data), formats=FORMATS)
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise BadImage(f"the image has more than {IMAGE_PIXELS} pixels") from error
    except Exception as error:
        known = ", ".join(FORMATS)
        raise BadImage(f"the value is no image of a known format ({known})") from error
    width, height = picture.size
    if width * height > IMAGE_PIXELS:
        raise BadImage(f"the image has {width} x {height} pixels, more than {IMAGE_PIXELS}")
    return picture
