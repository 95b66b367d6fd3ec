"""The descriptor of a namespace, as it lies in the store.

As a program (`python -m mooncake_store_connector.doctor.stored CONFIG KEY`) it joins the store and prints the object.
"""

import dataclasses
import json
import os
import sys
from functools import partial
from typing import Final

from mooncake_store_connector.client import LEAST_BUFFER, ClientConfig, StoreUnavailable, open_client, why_unreachable
from mooncake_store_connector.descriptor import Descriptor, descriptor_key, read_descriptor
from mooncake_store_connector.doctor.bounded import Deadline, open_replies, program, run_in_thread, run_program

_UNAVAILABLE: Final = 3


def fetch_descriptor(config: ClientConfig, namespace: str, deadline: Deadline) -> Descriptor:
    """The descriptor that an agent left. Raises StoreUnavailable, or ConfigError if it makes no sense."""
    late = f"{config.master} did not answer in time"
    if reason := run_in_thread(partial(why_unreachable, config.master), deadline.left(), late):
        raise StoreUnavailable(reason)
    command = program("stored", json.dumps(dataclasses.asdict(config)), descriptor_key(namespace))
    ran = run_program(command, deadline.left())
    if ran.status is None:
        raise StoreUnavailable(late)
    if ran.status != 0:
        raise StoreUnavailable(ran.said or f"asking {config.master} ended with status {ran.status}")
    if not ran.said:
        msg = f"the store at {config.master} has no descriptor of {namespace}: no engine has joined in this namespace"
        raise StoreUnavailable(msg)
    return read_descriptor(ran.said, descriptor_key(namespace))


def main() -> None:
    """Print the object, or nothing if there is none. Ends with 3 and tells why if the store cannot be joined."""
    config, key = ClientConfig(**json.loads(sys.argv[1])), sys.argv[2]
    replies = open_replies()
    try:
        client = open_client(dataclasses.replace(config, segment_size=0, local_buffer_size=LEAST_BUFFER))
    except StoreUnavailable as error:
        print(error, file=replies, flush=True)
        os._exit(_UNAVAILABLE)
    print(bytes(client.get(key)).decode(errors="replace"), file=replies, flush=True)
    # Leaving in order takes a second.
    os._exit(0)


if __name__ == "__main__":
    main()
