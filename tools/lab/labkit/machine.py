"""QEMU's command line and its process."""

import os
import shlex
import signal
import socket
import subprocess

from . import LabError, drives, host

# The streams between the guest and the lab: virtio-serial ports named lab.NAME.
PORTS = ("control", "request", "stdout", "stderr", "dmesg")


class Machine:
    """A running QEMU with its streams (`streams[name]`, connected sockets)."""

    def __init__(self, options, kernel, initrd, folder):
        self.streams = {}
        self._folder = folder
        self._errors = open(os.path.join(folder, "qemu.log"), "w+b")
        theirs = {}
        for name in (*PORTS, "console", "qmp"):
            self.streams[name], theirs[name] = socket.socketpair()
        descriptors = {name: end.fileno() for name, end in theirs.items()}
        arguments = qemu_command(options, kernel, initrd, descriptors)
        with open(os.path.join(folder, "command"), "w", encoding="utf-8") as note:
            note.write(shlex.join(arguments) + "\n")
        try:
            # The machine never outlives the lab, not even when that is killed.
            self.process = subprocess.Popen(
                [host.program("setpriv"), "--pdeathsig", "KILL", "--", *arguments],
                stdin=subprocess.DEVNULL, stdout=self._errors, stderr=self._errors,
                pass_fds=tuple(descriptors.values()), start_new_session=True)
        except OSError as problem:
            raise LabError(f"QEMU could not be started: {problem}") from problem
        finally:
            for end in theirs.values():
                end.close()

    def running(self):
        return self.process.poll() is None

    def said(self):
        """What QEMU itself wrote."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def threads(self):
        """What QEMU's threads do: name, state, what they wait for, ticks of processor time."""
        folder = f"/proc/{self.process.pid}/task"
        seen = []
        for task in sorted(os.listdir(folder)):
            try:
                with open(f"{folder}/{task}/stat", encoding="utf-8") as stat:
                    name, _, rest = stat.read().partition("(")[2].rpartition(")")
                with open(f"{folder}/{task}/wchan", encoding="utf-8") as wchan:
                    where = wchan.read()
            except OSError:
                continue
            fields = rest.split()
            seen.append(f"{name} {fields[0]} {where} {fields[11]}+{fields[12]}")
        return "; ".join(seen)

    def stop(self):
        """Ends QEMU so that it closes its images, by force when it does not within 10 s."""
        if self.running():
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in self.streams.values():
            stream.close()
        self._errors.close()


def _nodes(options):
    """Two NUMA nodes. Which one a drive hangs on is the guest's to say (sysfs, numa_node)."""
    megabytes = int(options.mem[:-1]) * (1024 if options.mem.endswith("G") else 1)
    arguments = []
    for node in range(2):
        arguments += ["-object", f"memory-backend-ram,id=node{node},size={megabytes // 2}M"]
        arguments += ["-numa", f"node,nodeid={node},cpus={node},memdev=node{node}"]
    return arguments


def qemu_command(options, kernel, initrd, descriptors):
    """QEMU's arguments; `descriptors` are its ends of the streams."""
    command = [host.program("qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += _processor(options)
    command += ["-m", options.mem]
    if options.numa:
        command += _nodes(options)
    # First, since a device is put behind the IOMMU only when that is there already.
    if options.iommu != "off":
        remapping = "off" if options.iommu == "no-intremap" else "on"
        command += ["-device", f"intel-iommu,intremap={remapping},caching-mode=on"]
    command += _streams(descriptors)
    if options.qmp:
        command += ["-qmp", f"unix:{_escape(options.qmp)},server=on,wait=off"]
    for share in options.shares:
        command += ["-virtfs", f"local,path={_escape(share.source)},mount_tag={share.tag},security_model=none"]
    for drive in options.drives:
        command += drives.qemu_arguments(drive)
    return [*command, "-kernel", kernel, "-initrd", initrd, "-append", kernel_arguments(options)]


def _processor(options):
    accelerator = os.environ.get("NVPOLL_LAB_ACCEL", "tcg")
    machine = "q35,vmport=off,smm=off,hpet=off,sata=off,smbus=off,i8042=off"
    if options.icount:
        return ["-machine", machine, "-accel", "tcg,thread=single", "-icount", "shift=1,sleep=on", "-cpu", "max", "-smp", "1"]
    if accelerator == "kvm":
        # Interrupt remapping needs the interrupt controller's half that QEMU emulates.
        return ["-machine", machine + ",kernel-irqchip=split", "-accel", "kvm", "-cpu", "host", "-smp", str(options.smp)]
    return ["-machine", machine, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(options.smp)]


def _streams(descriptors):
    arguments = ["-device", "virtio-serial-pci,max_ports=8,addr=1"]
    for number, name in enumerate(PORTS, start=1):
        arguments += ["-chardev", f"socket,id={name},fd={descriptors[name]}",
                      "-device", f"virtserialport,chardev={name},name=lab.{name},nr={number}"]
    arguments += ["-chardev", f"socket,id=console,fd={descriptors['console']}", "-serial", "chardev:console",
                  "-chardev", f"socket,id=qmp,fd={descriptors['qmp']}", "-mon", "chardev=qmp,mode=control"]
    return arguments


def kernel_arguments(options):
    # QEMU's controllers all say that they may have several ports, and Linux would put its multipath layer in between;
    # --append nvme_core.multipath=Y brings it back.
    words = ["console=ttyS0", "panic=-1", "random.trust_cpu=on", "tsc=reliable", "log_buf_len=1M",
             "nvme_core.multipath=N"]
    if not options.verbose:
        words.append("quiet")
    if options.iommu != "off":
        words.append("intel_iommu=on")
    return " ".join(words + options.append)


def _escape(path):
    return path.replace(",", ",,")
