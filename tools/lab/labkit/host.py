"""What the lab takes from the machine it runs on: programs, kernels, a turn."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

from . import LabError

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# How long a run waits for others to end.
TURN_SECONDS = 3600

PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "setpriv": "util-linux",
    "ldd": "libc-bin",
}


def program(name):
    """The path of a program; a LabError names the Debian package that brings it."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if not found:
        raise LabError(f"{name} is missing; the package {PACKAGES[name]} brings it: run tools/lab/setup as root")
    return found


def static_busybox():
    path = program("busybox")
    if libraries(path):
        raise LabError(f"{path} needs shared libraries; the guest wants the package busybox-static: "
                       "run tools/lab/setup as root")
    return path


def libraries(path):
    """The shared libraries that an executable needs, its loader included; none for a static one."""
    answer = subprocess.run([program("ldd"), path], capture_output=True, text=True, check=False)
    if answer.returncode != 0:  # "not a dynamic executable"
        return []
    missing = re.findall(r"(\S+) => not found", answer.stdout)
    if missing:
        raise LabError(f"{path} needs {', '.join(missing)}, which this machine lacks")
    return re.findall(r"(?:=> |^\s*)(/\S+) \(0x", answer.stdout, re.MULTILINE)


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "nvpoll", "lab")


def kernel(choice):
    """The kernel image for --kernel, and for Debian's the folder of its modules (else None)."""
    if choice == "debian":
        folder = _run_kernel_script("debian")
        return os.path.join(folder, "vmlinuz"), folder
    path = choice
    if choice == "small":
        path = os.environ.get("NVPOLL_LAB_KERNEL") or _small_kernel_in_cache()
    if not os.path.isfile(path):
        raise LabError(f"there is no kernel at {path}")
    return path, None


def _small_kernel_in_cache():
    with open(os.path.join(HERE, "lab.config"), "rb") as config:
        digest = hashlib.sha256(config.read()).hexdigest()[:16]
    path = os.path.join(cache_folder(), f"small-{digest}", "bzImage")
    if not os.path.isfile(path):
        raise LabError(f"the small kernel is not built yet ({path}): run tools/lab/kernel small (about 15 minutes of "
                       "processor time), set NVPOLL_LAB_KERNEL to one built from tools/lab/lab.config, or use "
                       "--kernel debian")
    return path


def _run_kernel_script(what):
    answer = subprocess.run([os.path.join(HERE, "kernel"), what], stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode != 0:
        raise LabError(f"tools/lab/kernel {what} failed with status {answer.returncode}, see above")
    return answer.stdout.strip().splitlines()[-1]


def build_guest_binary():
    answer = subprocess.run([os.path.join(HERE, "build-guest-binary")], stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode != 0:
        raise LabError(f"tools/lab/build-guest-binary failed with status {answer.returncode}, see above")
    return answer.stdout.strip().splitlines()[-1]


@contextlib.contextmanager
def turn():
    """Waits for one of the machine's slots: without hardware virtualisation machines that share processors starve
    each other, and polling ones most of all."""
    processors = len(os.sched_getaffinity(0))
    text = os.environ.get("NVPOLL_LAB_JOBS", "")
    slots = int(text) if text.isdecimal() and int(text) > 0 else max(1, processors // 2)
    folder = os.path.join(cache_folder(), "slots")
    os.makedirs(folder, exist_ok=True)
    began, told = time.monotonic(), False
    while True:
        for slot in range(slots):
            lock = open(os.path.join(folder, str(slot)), "ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            try:
                yield
            finally:
                lock.close()
            return
        if time.monotonic() - began > TURN_SECONDS:
            raise LabError(f"other lab machines were running for {TURN_SECONDS} s; end them, or set NVPOLL_LAB_JOBS "
                           "to let more than " + str(slots) + " run at a time")
        if not told and time.monotonic() - began > 30:
            print("lab: waiting for another lab machine to end (NVPOLL_LAB_JOBS sets how many may run)", file=sys.stderr,
                  flush=True)
            told = True
        time.sleep(0.1)
