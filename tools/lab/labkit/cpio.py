"""Writes the guest's file system: a "newc" cpio archive, as the kernel unpacks it at boot.

The format is described in the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
The archive is not compressed: making and unpacking that would cost more than loading it.
"""

import os
import stat


class Archive:
    """Files by their path in the guest; a later file of the same path replaces the earlier one."""

    def __init__(self):
        self._entries = {}  # path without the leading slash -> (mode, content)

    def directory(self, path, mode=0o755):
        self._add(path, stat.S_IFDIR | mode, b"")

    def file(self, path, content, mode=0o644):
        if isinstance(content, str):
            content = content.encode()
        self._add(path, stat.S_IFREG | mode, content)

    def link(self, path, to):
        self._add(path, stat.S_IFLNK | 0o777, os.fsencode(to))

    def host_file(self, path, source, mode=None):
        """A copy of the file `source` of this machine, with its permissions unless `mode` is given."""
        with open(source, "rb") as opened:
            content = opened.read()
            permissions = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
        self.file(path, content, permissions if mode is None else mode)

    def has(self, path):
        return path.strip("/") in self._entries

    def write(self, path):
        with open(path, "wb") as out:
            for number, name in enumerate(sorted(self._entries), start=1):
                mode, content = self._entries[name]
                self._write_entry(out, number, name, mode, content)
            self._write_entry(out, 0, "TRAILER!!!", 0, b"")

    def _add(self, path, mode, content):
        path = path.strip("/")
        parent = os.path.dirname(path)
        if parent and parent not in self._entries:
            self.directory(parent)
        self._entries[path] = (mode, content)

    @staticmethod
    def _write_entry(out, number, name, mode, content):
        name = os.fsencode(name) + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        #         ino     mode  uid gid nlink  mtime size          major minor rmajor rminor namesize check
        fields = [number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name), 0]
        header = b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out.write(header + bytes(-len(header) % 4))
        out.write(content + bytes(-len(content) % 4))
