"""What the guest's program `host` asks for: changes to the hardware while the command runs."""

import json

from . import LabError, UsageError
from .drives import parse_count, parse_duration_ns, parse_size, slow_limits
from .qmp import Refused


def handle(qmp, drives, line):
    """The answer to one request: "ok", "ok RESULT" or "error REASON"."""
    word, _, rest = line.strip().partition(" ")
    try:
        if word == "qmp":
            return "ok " + json.dumps(qmp.send(json.loads(rest)))
        serial, _, argument = rest.partition(" ")
        drive = _find(drives, serial)
        if word == "unplug" and not argument:
            _unplug(qmp, drive)
        elif word == "slow":
            slow(qmp, drive, parse_duration_ns(argument) / 1e9)
        elif word == "speed":
            _set_limits(qmp, drive, _parse_speed(argument))
        else:
            return f"error unknown request {line!r}"
    except (Refused, UsageError, LabError, ValueError) as problem:
        return "error " + " ".join(str(problem).split())
    return "ok"


def slow(qmp, drive, seconds):
    _set_limits(qmp, drive, slow_limits(seconds))


def _find(drives, serial):
    for drive in drives:
        if drive.serial == serial:
            return drive
    raise UsageError(f"there is no drive {serial!r}; there are {', '.join(drive.serial for drive in drives) or 'none'}")


def _unplug(qmp, drive):
    if not drive.hot:
        raise UsageError(f"the drive {drive.serial} cannot be unplugged; give it port=hot")
    qmp.execute("device_del", id=drive.device_id)


def _parse_speed(text):
    key, _, value = text.partition("=")
    if text == "unlimited":
        return {"iops-total": 0, "bps-total": 0}
    if key == "iops":
        return {"iops-total": parse_count(value, 1, 10**8), "bps-total": 0}
    if key == "bps":
        return {"iops-total": 0, "bps-total": parse_size(value)}
    raise UsageError(f"{text!r} is no speed; say iops=N, bps=SIZE or unlimited")


def _set_limits(qmp, drive, limits):
    qmp.execute("qom-set", path=f"/objects/{drive.throttle_group}", property="limits", value=limits)
