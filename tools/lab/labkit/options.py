"""The command line of tools/lab/lab."""

import argparse
import os
import re
from dataclasses import dataclass

from . import UsageError
from .drives import DRIVES_MAX, SPEC_HELP, parse_drive, share_slots

DESCRIPTION = """\
Boots a QEMU machine with NVMe drives, runs COMMAND in it as root and ends as COMMAND ended:
its stdout, its stderr and its exit status are this program's.
"""

EPILOG = SPEC_HELP + """
In the guest (besides busybox):
  drive SERIAL [address|controller|node|generic|group|driver]   where a drive is now
  bind-drive SERIAL DRIVER                  give it to vfio-pci, uio_pci_generic, nvme or none by sysfs
  signal-after SECONDS SIGNAL COMMAND...    and signal-when TEXT SIGNAL COMMAND...
  host unplug|slow|speed SERIAL ...         change the hardware from within (see tools/lab/README.md)

Exit status: COMMAND's own (128 + N when signal N ended it); 124 when it took longer than --timeout;
125 when the lab failed, with the reason on stderr; 2 for bad usage; 130 and 143 when the lab itself was ended.
The first SIGINT (Ctrl-C) goes to COMMAND in the guest, the second ends the lab.

Environment: NVPOLL_LAB_KERNEL=PATH is the small kernel, ready built; NVPOLL_LAB_JOBS=N machines may run at a time
(half the processors by default; the others wait); NVPOLL_LAB_ACCEL=kvm instead of tcg.
"""


@dataclass
class Share:
    """A folder of this machine that the guest sees."""

    tag: str
    source: str
    guest: str


def build_parser():
    parser = argparse.ArgumentParser(
        prog="lab", usage="lab [OPTION...] -- COMMAND [ARG...]", description=DESCRIPTION, epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--drive", action="append", default=[], metavar="SPEC", help="a drive (see below); one D0 without this option")
    add("--no-drives", action="store_true", help="no drive at all")
    add("--binary", action="append", default=[], metavar="PATH[=NAME]",
        help="put this program, with the libraries it needs, into the guest's /usr/bin")
    add("--build", action="store_true", help="build nvpoll for the guest (tools/lab/build-guest-binary) and put it there")
    add("--file", action="append", default=[], metavar="HOST[:GUEST]", help="put this file there (/root/NAME by default)")
    add("--share", action="append", default=[], metavar="DIR[:GUEST]",
        help="let the guest read and write this folder (/mnt/NAME by default)")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for COMMAND")
    add("--user", default="root", metavar="NAME", help="run COMMAND as root, nobody or user (uid 1000)")
    add("--kernel", default="small", metavar="small|debian|PATH",
        help="small: built from lab.config, nothing modular (default); debian: Debian's own with its modules")
    add("--append", action="append", default=[], metavar="TEXT", help="words for the kernel's command line")
    add("--smp", type=int, default=1, metavar="N", help="processors (1; see README.md, \"A machine that freezes\")")
    add("--mem", default="1G", metavar="SIZE", help="memory (1G)")
    add("--numa", action="store_true", help="two NUMA nodes with half of the memory each; needs two processors, one a node")
    add("--iommu", default="on", choices=("on", "off", "no-intremap"), help="on by default; no-intremap: it cannot remap interrupts")
    add("--icount", action="store_true", help="one processor whose time is counted in instructions: repeatable guest time")
    add("--timeout", type=float, default=120, metavar="SECONDS", help="how long COMMAND may take, without the boot (120)")
    add("--boot-timeout", type=float, default=60, metavar="SECONDS",
        help="how long the boot may take before it is tried once more (60)")
    add("--qmp", metavar="SOCKET", help="QEMU's control socket, made at this path")
    add("--dmesg", metavar="FILE", help="write the guest kernel's log there")
    add("--keep", action="store_true", help="keep the folder with the console's log, the command line and the images")
    add("--verbose", action="store_true", help="the guest's console on stderr")
    add("command", nargs="*", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def parse(arguments):
    """The options as a namespace with `drives` and `shares` parsed; raises UsageError."""
    parser = build_parser()
    own, command = arguments, []
    if "--" in arguments:
        split = arguments.index("--")
        own, command = arguments[:split], arguments[split + 1:]
    options = parser.parse_args(own)
    if options.command:
        raise UsageError(f"unexpected {options.command[0]!r}; write -- before COMMAND")
    if not command:
        raise UsageError("no COMMAND; write -- and the command after the options")
    options.command = command
    _check(options)
    specs = [] if options.no_drives else options.drive or [""]
    options.drives = [parse_drive(index, spec) for index, spec in enumerate(specs)]
    share_slots(options.drives)
    serials = [drive.serial for drive in options.drives]
    doubled = {serial for serial in serials if serials.count(serial) > 1}
    if doubled:
        raise UsageError(f"two drives have the serial number {doubled.pop()}; each needs its own")
    options.shares = [_parse_share(number, text) for number, text in enumerate(options.share)]
    return options


def _check(options):
    if options.no_drives and options.drive:
        raise UsageError("--no-drives and --drive exclude each other")
    if len(options.drive) > DRIVES_MAX:
        raise UsageError(f"{len(options.drive)} drives; the machine has room for {DRIVES_MAX}")
    if not 1 <= options.smp <= 8:
        raise UsageError(f"--smp {options.smp}: the small kernel knows 1 to 8 processors")
    if options.numa and (options.smp != 2 or options.icount):
        raise UsageError("--numa: needs --smp 2, a processor for each node")
    if options.timeout <= 0 or options.boot_timeout <= 0:
        raise UsageError("--timeout and --boot-timeout want more than 0 seconds")
    if not re.fullmatch(r"[1-9]\d*[MG]", options.mem):
        raise UsageError(f"--mem {options.mem}: write for instance 512M or 2G")
    for text in options.env:
        if not re.match(r"[A-Za-z_]\w*=", text):
            raise UsageError(f"--env {text}: not NAME=VALUE")
    if options.user not in ("root", "nobody", "user"):
        raise UsageError(f"--user {options.user}: the guest has root, nobody and user")


def _parse_share(number, text):
    source, _, guest = text.partition(":")
    if not os.path.isdir(source):
        raise UsageError(f"--share {text}: {source} is no folder")
    source = os.path.abspath(source)
    return Share(f"share{number}", source, guest or f"/mnt/{os.path.basename(source)}")
