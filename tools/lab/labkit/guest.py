"""The guest's file system: busybox, the programs and files asked for, and the description of the run."""

import os
import shlex
import shutil
import subprocess

from . import LabError, UsageError, host
from .cpio import Archive

# Loaded before COMMAND with Debian's kernel; every other module is there for modprobe.
MODULES = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "nvme", "vfio-pci", "vfio_iommu_type1", "uio_pci_generic")

PASSWD = """\
root:x:0:0:root:/root:/bin/sh
user:x:1000:1000:user:/home/user:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/sh
"""
GROUP = "root:x:0:\ndisk:x:6:\nuser:x:1000:\nnogroup:x:65534:\n"


def build(options, modules_folder, path):
    """Writes the initramfs for one run to `path`."""
    archive = Archive()
    for folder in ("proc", "sys", "dev", "run", "tmp", "mnt", "root"):
        archive.directory(folder)
    _add_busybox(archive)
    _add_lab(archive, options)
    for text in options.binary:
        source, _, name = text.partition("=")
        add_program(archive, _executable(source), name or os.path.basename(source))
    if options.build:
        add_program(archive, host.build_guest_binary(), "nvpoll")
    for text in options.file:
        _add_file(archive, text)
    if modules_folder:
        _add_modules(archive, modules_folder)
    archive.write(path)


def _add_busybox(archive):
    busybox = host.static_busybox()
    archive.host_file("bin/busybox", busybox, 0o4755)  # set-uid for su, as on Debian
    listed = subprocess.run([busybox, "--list-full"], capture_output=True, text=True, check=True).stdout.split()
    for applet in listed:
        if os.path.basename(applet) != "busybox":
            archive.link(applet, "/bin/busybox")
    archive.file("etc/passwd", PASSWD)
    archive.file("etc/group", GROUP)
    archive.file("etc/hosts", "127.0.0.1 localhost lab\n")
    archive.directory("home/user")


def _add_lab(archive, options):
    folder = os.path.join(host.HERE, "guest")
    archive.host_file("init", os.path.join(folder, "init"), 0o755)
    for name in os.listdir(os.path.join(folder, "bin")):
        archive.host_file(f"usr/bin/{name}", os.path.join(folder, "bin", name), 0o755)
    archive.file("etc/lab/command", command_script(options), 0o755)
    archive.file("etc/lab/drives", "".join(
        f"{drive.serial} {drive.slot:02x}.{drive.function} {_switch(drive.hot)} {drive.namespaces} {_switch(drive.wait)}\n"
        for drive in options.drives))
    archive.file("etc/lab/shares", "".join(f"{share.tag} {share.guest}\n" for share in options.shares))


def _switch(value):
    return "on" if value else "off"


def command_script(options):
    """COMMAND as a script that replaces itself by it, so that its pid is known for signals."""
    lines = ["#!/bin/sh", "echo $$ >/run/lab/pid"]
    lines += [f"export {name}={shlex.quote(value)}" for name, _, value in (text.partition("=") for text in options.env)]
    command = shlex.join(options.command)
    if options.user == "root":
        lines.append(f"exec {command}")
    else:
        home = {"user": "/home/user", "nobody": "/"}[options.user]
        lines.append(f"chown {options.user} /home/user 2>/dev/null; cd {home}; export HOME={home}")
        # The carriers' pipes belong to root; the command may want to open /dev/stdout again.
        lines.append("chmod 666 /run/lab/stdout /run/lab/stderr")
        lines.append(f"exec su {options.user} -s /bin/sh -c {shlex.quote('exec ' + command)}")
    return "\n".join(lines) + "\n"


def _executable(source):
    path = source if os.sep in source else shutil.which(source) or source
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise UsageError(f"--binary {source}: there is no such executable file")
    return path


def add_program(archive, path, name):
    """An executable as /usr/bin/NAME, and each shared library it needs at its own path."""
    archive.host_file(f"usr/bin/{name}", path, 0o755)
    for library in host.libraries(path):
        if not archive.has(library):
            archive.host_file(library, library, 0o755)


def _add_file(archive, text):
    source, _, target = text.partition(":")
    if not os.path.isfile(source):
        raise UsageError(f"--file {text}: there is no file {source}")
    if target.endswith("/") or not target:
        target = (target or "/root/") + os.path.basename(source)
    if not target.startswith("/"):
        raise UsageError(f"--file {text}: {target} is no absolute path")
    archive.host_file(target, source)


def _add_modules(archive, folder):
    base = os.path.join(folder, "lib")
    if not os.path.isdir(base):
        raise LabError(f"{folder} has no modules; remove it and run tools/lab/kernel debian again")
    for where, _, names in os.walk(base):
        for name in names:
            path = os.path.join(where, name)
            archive.host_file(os.path.relpath(path, folder), path)
    archive.file("etc/lab/modules", "".join(f"{module}\n" for module in MODULES))
