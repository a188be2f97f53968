"""The NVMe drives of the machine: their description on the command line, and QEMU's arguments for them."""

import json
import os
import re
from dataclasses import dataclass, field

from . import LabError, UsageError

# PCI slots 1 to 3 hold the lab's own devices, slot 31 the chipset.
FIRST_SLOT = 4
DRIVES_MAX = 24

# Options of a drive that go to QEMU's nvme device as they are.
CONTROLLER_OPTIONS = ("mdts", "mqes", "max_ioqpairs", "msix_qsize", "cmb_size_mb", "vsl")
# The same for its nvme-ns devices.
NAMESPACE_OPTIONS = ("ms", "pi", "mset", "pil", "pif")

SPEC_HELP = """\
A drive is described by KEY=VALUE pairs with commas between them:
  serial=D0          serial number; the drive's name everywhere in the lab (D0, D1, ... by default)
  size=64M           size of each namespace; with an image that exists, its size
  lba=512            bytes in a logical block
  namespaces=1       how many; the second one's image is PATH.ns2 and so on
  image=PATH         raw image file, created sparse where there is none; kept afterwards
                     (without image= the drive starts with zeroes and is forgotten)
  mdts= mqes= max_ioqpairs= msix_qsize= vsl= cmb_size_mb=      as of QEMU's nvme device
  ms= pi= mset= pil= pif=                                      as of QEMU's nvme-ns device
  controller.X=Y namespace.X=Y                                 any other property of these two
  iops=N bps=SIZE    the speed of the drive (all namespaces together)
  slow=2s            from COMMAND's start 4096 bytes take that long (more bytes longer; the first request is free)
  latency=80us       each request takes that long; such a drive keeps no data and reads as zeroes
  backing=null       the same, and a request takes no longer than the controller does; no limit of speed
  error-sector=N     reads that touch the N-th 512-byte sector of the first namespace fail (repeatable)
  write-error-sector=N   the same for writes
  with=SERIAL        a function of the slot of that earlier drive, so that both are in one IOMMU group
  port=hot           behind a PCIe hot-plug port, so that it can be unplugged
  wait=off           COMMAND does not wait for this drive's block device
"""


@dataclass
class Drive:
    """One NVMe controller with its namespaces."""

    index: int
    serial: str = ""
    size: int = 64 << 20
    size_given: bool = False
    lba: int = 512
    namespaces: int = 1
    image: str = ""
    iops: int = 0
    bps: int = 0
    slow_s: float = 0.0
    latency_ns: int = 0
    null: bool = False
    error_sectors: list = field(default_factory=list)  # (iotype, sector)
    hot: bool = False
    beside: str = ""  # the serial number of the drive whose slot it shares
    place: tuple = ()  # slot and function, when the slot is shared
    wait: bool = True
    controller: dict = field(default_factory=dict)
    namespace: dict = field(default_factory=dict)

    @property
    def keeps_data(self):
        return not self.null and not self.latency_ns

    @property
    def device_id(self):
        """The controller's id for QMP: the serial number where QEMU allows that as an id."""
        valid = re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]*", self.serial)
        return self.serial if valid else f"drive{self.index}"

    @property
    def throttle_group(self):
        return f"speed{self.index}"

    @property
    def slot(self):
        return self.place[0] if self.place else FIRST_SLOT + self.index

    @property
    def function(self):
        return self.place[1] if self.place else 0

    def image_of(self, nsid):
        return self.image if nsid == 1 else f"{self.image}.ns{nsid}"


def parse_size(text):
    """`64M` in bytes."""
    found = re.fullmatch(r"(\d+)([KMGT]?)(i?B?)", text, re.IGNORECASE)
    if not found:
        raise UsageError(f"{text!r} is no size; write for instance 64M")
    return int(found[1]) << (10 * " KMGT".index(found[2].upper() or " "))


def parse_duration_ns(text):
    """`80us` in nanoseconds."""
    units = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s)", text)
    if not found:
        raise UsageError(f"{text!r} is no duration; write for instance 80us or 2s")
    return int(float(found[1]) * units[found[2]])


def parse_count(text, least, most):
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UsageError(f"{text!r} is no number from {least} to {most}")
    return int(text)


def parse_switch(text):
    if text not in ("on", "off"):
        raise UsageError(f"{text!r} is neither on nor off")
    return text == "on"


def parse_drive(index, spec):
    """The drive that `--drive SPEC` describes; see `SPEC_HELP`."""
    drive = Drive(index=index, serial=f"D{index}")
    for pair in filter(None, spec.split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not value:
            raise UsageError(f"--drive {spec}: {pair!r} is not KEY=VALUE")
        try:
            _set_option(drive, key, value)
        except UsageError as problem:
            raise UsageError(f"--drive {spec}: {key}: {problem}") from None
    _check_drive(drive, spec)
    return drive


def _set_option(drive, key, value):
    if key == "serial":
        drive.serial = value
    elif key == "size":
        drive.size, drive.size_given = parse_size(value), True
    elif key == "lba":
        drive.lba = parse_count(value, 512, 65536)
    elif key == "namespaces":
        drive.namespaces = parse_count(value, 0, 16)
    elif key == "image":
        drive.image = value
    elif key == "iops":
        drive.iops = parse_count(value, 1, 10**8)
    elif key == "bps":
        drive.bps = parse_size(value)
    elif key == "slow":
        drive.slow_s = parse_duration_ns(value) / 1e9
    elif key == "latency":
        drive.latency_ns = parse_duration_ns(value)
    elif key == "backing":
        if value != "null":
            raise UsageError(f"{value!r} is unknown; without backing= a drive has an image, and the other kind is null")
        drive.null = True
    elif key == "error-sector":
        drive.error_sectors.append(("read", parse_count(value, 0, 1 << 40)))
    elif key == "write-error-sector":
        drive.error_sectors.append(("write", parse_count(value, 0, 1 << 40)))
    elif key == "port":
        if value != "hot":
            raise UsageError(f"{value!r} is unknown; the only special port is hot")
        drive.hot = True
    elif key == "with":
        drive.beside = value
    elif key == "wait":
        drive.wait = parse_switch(value)
    elif key in CONTROLLER_OPTIONS or key.startswith("controller."):
        drive.controller[key.removeprefix("controller.")] = value
    elif key in NAMESPACE_OPTIONS or key.startswith("namespace."):
        drive.namespace[key.removeprefix("namespace.")] = value
    else:
        raise UsageError("unknown; see tools/lab/lab --help")


def _check_drive(drive, spec):
    if len(drive.serial.encode()) > 20:
        raise UsageError(f"--drive {spec}: a serial number has at most 20 bytes (NVMe Base, Identify Controller)")
    if re.search(r"[\s/]", drive.serial):
        raise UsageError(f"--drive {spec}: a serial number here has no white space and no slash")
    if drive.image and not drive.keeps_data:
        raise UsageError(f"--drive {spec}: latency= and backing=null make a drive without data, so it takes no image=")
    if drive.null and (drive.iops or drive.bps or drive.slow_s or drive.latency_ns):
        raise UsageError(f"--drive {spec}: backing=null is a drive that nothing slows down; leave the speed out")
    if drive.slow_s and (drive.iops or drive.bps):
        raise UsageError(f"--drive {spec}: slow= sets the speed itself, so it takes no iops= or bps=")
    if drive.size % drive.lba:
        raise UsageError(f"--drive {spec}: the size is no multiple of the block size {drive.lba}")


def share_slots(drives):
    """Gives the drives with `with=` their functions; without ACS the kernel puts a slot into one IOMMU group."""
    for drive in drives:
        if not drive.beside:
            continue
        owner = next((other for other in drives[:drive.index] if other.serial == drive.beside), None)
        if owner is None or owner.hot or owner.beside or drive.hot:
            raise UsageError(f"with={drive.beside}: name an earlier drive that is neither hot nor with another itself")
        number = sum(other.beside == drive.beside for other in drives[:drive.index]) + 1
        if number > 7:
            raise UsageError(f"with={drive.beside}: a slot has eight functions")
        drive.place = (owner.slot, number)
        owner.controller["multifunction"] = drive.controller["multifunction"] = "on"


def prepare_images(drive, folder):
    """Creates the images that are not there, in `folder` where no image= was given."""
    if not drive.keeps_data:
        return
    if not drive.image:
        drive.image = os.path.join(folder, f"drive{drive.index}.img")
    for nsid in range(1, drive.namespaces + 1):
        path = drive.image_of(nsid)
        try:
            present = os.path.getsize(path) if os.path.exists(path) else 0
            if present and drive.size_given and present != drive.size:
                raise LabError(
                    f"{path} has {present} bytes but size={drive.size} was asked for; "
                    "leave size= out to take the image as it is, or remove the image"
                )
            if not present:
                with open(path, "ab") as image:
                    image.truncate(drive.size)
        except OSError as problem:
            raise LabError(f"the image {path} cannot be used: {problem.strerror}") from problem


def speed_limits(drive):
    """The drive's set speed as QEMU's ThrottleLimits; every limit is named, so that old ones go."""
    return {"iops-total": drive.iops, "bps-total": drive.bps}


def slow_limits(seconds):
    """Limits under which each 4096 bytes take `seconds`."""
    return {"iops-total": 0, "bps-total": max(1, int(4096 / seconds))}


def qemu_arguments(drive):
    """The arguments for the controller, its namespaces and the block graph below each of them:
    file (or null) <- blkdebug where errors are asked for <- throttle <- nvme-ns."""
    arguments = ["-object", json.dumps({
        "qom-type": "throttle-group", "id": drive.throttle_group, "limits": speed_limits(drive)})]
    bus = "pcie.0"
    if drive.hot:
        bus = f"port-{drive.device_id}"
        arguments += ["-device", f"pcie-root-port,id={bus},bus=pcie.0,addr={drive.slot:#x},"
                                 f"chassis={drive.index + 1},slot={drive.index + 1}"]
    address = "0" if drive.hot else f"{drive.slot:x}.{drive.function}"
    arguments += ["-device", _device(
        "nvme", {"id": drive.device_id, "serial": drive.serial, "bus": bus, "addr": address, **drive.controller})]
    for nsid in range(1, drive.namespaces + 1):
        node = _block_graph(arguments, drive, nsid)
        arguments += ["-device", _device("nvme-ns", {
            "id": f"{drive.device_id}-ns{nsid}", "bus": drive.device_id, "drive": node, "nsid": nsid,
            "logical_block_size": drive.lba, "physical_block_size": drive.lba, **drive.namespace})]
    return arguments


def _block_graph(arguments, drive, nsid):
    """Adds the block nodes of one namespace and returns the name of the uppermost."""
    base = f"d{drive.index}n{nsid}"
    bottom = {"node-name": f"{base}-file", "driver": "file", "filename": drive.image_of(nsid),
              # The data only has to outlive the machine, not the host: flushes need not reach the disk.
              "cache": {"direct": False, "no-flush": True}, "discard": "unmap"}
    if not drive.keeps_data:
        bottom = {"node-name": f"{base}-file", "driver": "null-co", "size": drive.size,
                  "latency-ns": drive.latency_ns, "read-zeroes": True}
    nodes = [bottom]
    if drive.error_sectors and nsid == 1:
        nodes.append({"node-name": f"{base}-errors", "driver": "blkdebug", "image": nodes[-1]["node-name"],
                      "inject-error": [{"event": "none", "iotype": iotype, "errno": 5, "sector": sector}
                                       for iotype, sector in drive.error_sectors]})
    if not drive.null:
        nodes.append({"node-name": f"{base}-speed", "driver": "throttle", "throttle-group": drive.throttle_group,
                      "file": nodes[-1]["node-name"]})
    for node in nodes:
        # Each node that does not pass discards on keeps them to itself.
        arguments += ["-blockdev", json.dumps({"discard": "unmap", **node})]
    return nodes[-1]["node-name"]


def _device(driver, properties):
    """A `-device` argument; QEMU wants commas in values doubled."""
    pairs = (f"{key}={str(value).replace(',', ',,')}" for key, value in properties.items())
    return ",".join([driver, *pairs])
