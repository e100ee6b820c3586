"""What delta-rs, which opens the files of a Delta table itself, is told of the store that they lie in: the same
address and credentials that our own driver has.
"""

import re
from typing import Any

import fsspec.asyn

from nightshift.common import storage
from nightshift.common.errors import BadInput
from nightshift.common.public_text import private
from nightshift.common.storage.driver_errors import guard

BOUNDS = {"connect_timeout": "3 seconds", "timeout": "60 seconds"}
"""For a connection, and for one request of it."""


READ_ALIKE = re.compile(r"[\w/ .,=+@~:-]*")
"""Names of tables that delta-rs reads as everybody does. It takes a name for a URL, and decodes it twice:
`%2e%2e` is the folder above, `\\` a slash.
"""


def storage_options(uri: str) -> dict[str, str]:
    """Options for `deltalake` to reach a table at this address; none for a local one, and for stores whose
    credentials delta-rs finds by itself. Asked for again at each opening: credentials expire.

    Raises BadInput for a name that delta-rs would take for another one, and where the driver is missing,
    StorageUnavailable.
    """
    if not READ_ALIKE.fullmatch(uri):
        raise BadInput(
            f"{private(uri)}: the library for Delta reads this name as another one: name the folders around the table with "
            "letters, digits, spaces and . _ - = + , @ ~ : alone"
        )
    if storage.is_local(uri) or not storage.resolve(uri).startswith("s3://"):
        return {}
    driver, _ = storage.driver_of(uri)
    with guard("reached", uri):
        found: dict[str, str] = fsspec.asyn.sync(driver.loop, _of_s3, driver)
    return found


async def _of_s3(driver: Any) -> dict[str, str]:
    """Address, region and credentials of an s3fs driver."""
    await driver.set_session()
    about = driver.s3.meta
    found = {
        **BOUNDS,
        "aws_endpoint": str(about.endpoint_url),
        "aws_region": str(about.region_name or "us-east-1"),
        "aws_allow_http": str(about.endpoint_url.startswith("http://")).lower(),
    }
    if driver.anon:
        return {**found, "aws_skip_signature": "true"}
    if driver.key and driver.secret:
        key, secret, token = driver.key, driver.secret, driver.token
    else:
        held = await driver.session.get_credentials()
        if held is None:
            return found
        frozen = await held.get_frozen_credentials()
        key, secret, token = frozen.access_key, frozen.secret_key, frozen.token
    found |= {"aws_access_key_id": key, "aws_secret_access_key": secret}
    return {**found, "aws_session_token": token} if token else found
