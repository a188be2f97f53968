"""QEMU's machine protocol (docs/interop/qmp-spec.rst), as far as the lab needs it."""

import json
import time

from . import LabError

ANSWER_SECONDS = 20
ANSWER_BYTES_MAX = 16 << 20


class Refused(Exception):
    """QEMU understood the command and said no."""


class Qmp:
    """One connection; commands are answered before the next is sent, events are dropped."""

    def __init__(self, connection):
        self._connection = connection
        self._received = b""
        self._ready = False

    def execute(self, name, **arguments):
        return self.send({"execute": name, "arguments": arguments})

    def send(self, command):
        if not self._ready:
            self._read_until("QMP")  # the greeting
            self._exchange({"execute": "qmp_capabilities"})
            self._ready = True
        return self._exchange(command)

    def _exchange(self, command):
        self._connection.sendall(json.dumps(command).encode() + b"\n")
        answer = self._read_until("return", "error")
        if "error" in answer:
            raise Refused(answer["error"].get("desc", str(answer["error"])))
        return answer["return"]

    def _read_until(self, *keys):
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                message = json.loads(line)
                if any(key in message for key in keys):
                    return message
                continue
            self._connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                data = self._connection.recv(65536)
            except TimeoutError:
                raise LabError(f"QEMU did not answer within {ANSWER_SECONDS} s on its control socket") from None
            if not data or len(self._received) > ANSWER_BYTES_MAX:
                raise LabError("QEMU closed its control socket")
            self._received += data
