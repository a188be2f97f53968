"""One run: boots the machine, carries the streams, answers the guest, knows when it is over."""

import os
import selectors
import signal
import sys
import time

from . import LabError, requests
from .machine import Machine
from .qmp import Qmp

CHUNK = 65536
CONSOLE_BYTES_MAX = 4 << 20
DMESG_BYTES_MAX = 16 << 20
# How long streams are emptied at the end, and how long a guest whose time is up may take to send its log.
DRAIN_SECONDS = 5
DUMP_SECONDS = 20
# How often the guest is asked whether it lives, and how long it may take to answer.
ASK_SECONDS = 10
FROZEN_SECONDS = 60

STATUS_TIMEOUT = 124

# Tests look for these words: see README.md, "A machine that freezes".
FROZEN = "the machine itself does not answer"


class BootStalled(LabError):
    """The command did not begin in time; nothing of it has run, so another try is harmless."""


def run(options, kernel, initrd, folder):
    """The exit status of the run. A boot that stalls is tried once more, a command that began never."""
    try:
        return Session(options, kernel, initrd, folder).run()
    except BootStalled as stall:
        print(f"lab: {stall}; trying once more", file=sys.stderr)
        return Session(options, kernel, initrd, folder).run()


class Session:
    """The lab's side of one machine."""

    def __init__(self, options, kernel, initrd, folder):
        self._options = options
        self._folder = folder
        self._console = bytearray()
        self._dmesg = bytearray()
        self._lines = {"control": b"", "request": b""}
        self._began = None  # when the command began
        self._asked = None  # when the guest was asked whether it lives, and has not answered
        self._answered = None  # when it last did
        self._status = None  # the command's exit status
        self._failure = None
        self._dumped = False  # the guest has sent its log on request
        self._interrupted = False
        self._machine = Machine(options, kernel, initrd, folder)
        self._qmp = Qmp(self._machine.streams["qmp"])
        self._selector = selectors.DefaultSelector()
        for name, stream in self._machine.streams.items():
            if name != "qmp":
                stream.setblocking(False)
                self._selector.register(stream, selectors.EVENT_READ, name)

    def run(self):
        previous = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            return self._until_ended()
        finally:
            signal.signal(signal.SIGINT, previous)
            self._machine.stop()
            self._selector.close()
            self._write_logs()

    # -- the course of events

    def _until_ended(self):
        deadline = time.monotonic() + self._options.boot_timeout
        while self._began is None:
            if not self._turn(deadline):
                raise self._boot_stalled()
        deadline = self._began + self._options.timeout
        while self._status is None:
            if not self._turn(deadline):
                return self._timed_out()
            self._look_whether_it_lives()
        self._drain()
        return self._status

    def _turn(self, deadline):
        """Handles what has come, waits at most until `deadline`; False when that has passed."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        for key, _ in self._selector.select(min(left, 1.0)):
            self._receive(key.data, key.fileobj)
        if self._failure:
            raise LabError(self._failure)
        if self._status is None and not self._machine.running():
            self._drain()
            if self._status is None:
                raise LabError(self._explain_exit())
        return True

    def _drain(self):
        """Takes what is in the streams. The guest says "end" after everything else has reached them; a command that
        is still writing must not hold us up."""
        deadline = time.monotonic() + DRAIN_SECONDS
        ready = self._selector.select(0)
        while ready and time.monotonic() < deadline:
            for key, _ in ready:
                self._receive(key.data, key.fileobj)
            ready = self._selector.select(0)

    def _boot_stalled(self):
        return BootStalled(f"the machine did not begin the command within {self._options.boot_timeout:g} s; "
                           f"its console ended with: {self._console_tail()}")

    def _timed_out(self):
        print(f"lab: the command did not end within {self._options.timeout:g} s", file=sys.stderr)
        self._tell_guest("dump")
        deadline = time.monotonic() + DUMP_SECONDS
        while not self._dumped and self._turn(deadline):
            pass
        self._drain()
        if not self._dumped:
            raise self._frozen(DUMP_SECONDS)
        for line in self._dmesg.decode(errors="replace").splitlines():
            if "process: " in line:
                print(f"lab: {line.partition('process: ')[2]}", file=sys.stderr)
        return STATUS_TIMEOUT

    def _look_whether_it_lives(self):
        """Asks the guest's first process now and then. No program of the guest's can keep it from answering."""
        now = time.monotonic()
        if self._asked is None and now - self._answered > ASK_SECONDS:
            self._asked = now
            self._tell_guest("ask")
        if self._asked is not None and now - self._asked > FROZEN_SECONDS:
            raise self._frozen(FROZEN_SECONDS)

    def _frozen(self, seconds):
        return LabError(f"{FROZEN} for {seconds} s; QEMU's threads (state, wait, ticks): {self._machine.threads()}")

    def _explain_exit(self):
        said = self._machine.said()
        if said:
            return f"QEMU ended with status {self._machine.process.returncode} and said: {said}"
        when = "before the command began" if self._began is None else "while the command ran"
        return f"the guest went down {when}; its console ended with: {self._console_tail()}"

    def _console_tail(self):
        text = bytes(self._console[-3000:]).decode(errors="replace").replace("\r", "").strip()
        return "\n" + text if text else "nothing at all"

    # -- the streams

    def _receive(self, name, stream):
        try:
            data = stream.recv(CHUNK)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(stream)
            return
        if name == "stdout":
            write_all(1, data)
        elif name == "stderr":
            write_all(2, data)
        elif name == "dmesg":
            self._dmesg += data[: DMESG_BYTES_MAX - len(self._dmesg)]
        elif name == "console":
            self._console += data[: CONSOLE_BYTES_MAX - len(self._console)]
            if self._options.verbose:
                write_all(2, data)
        else:
            self._receive_lines(name, data)

    def _receive_lines(self, name, data):
        *lines, rest = (self._lines[name] + data).split(b"\n")
        self._lines[name] = rest[-CHUNK:]
        for line in lines:
            text = line.decode(errors="replace")
            if name == "control":
                self._obey(text)
            else:
                self._reply(text)

    def _obey(self, line):
        word, _, rest = line.partition(" ")
        if word == "begin":
            for drive in self._options.drives:
                if drive.slow_s:
                    requests.slow(self._qmp, drive, drive.slow_s)
            self._began = self._answered = time.monotonic()
            self._tell_guest("go")
        elif word == "end" and rest.isdecimal():
            self._status = int(rest)
        elif word == "answer":
            self._asked, self._answered = None, time.monotonic()
        elif word == "dumped":
            self._dumped = True
        elif word == "fail":
            self._failure = f"the guest could not prepare itself: {rest}"
        else:
            self._failure = f"the guest said {line!r}, which the lab does not understand"

    def _reply(self, line):
        answer = requests.handle(self._qmp, self._options.drives, line)
        self._send("request", answer)

    def _tell_guest(self, line):
        self._send("control", line)

    def _send(self, name, line):
        stream = self._machine.streams[name]
        stream.settimeout(5)
        try:
            stream.sendall(line.encode() + b"\n")
        except OSError as problem:
            raise LabError(f"the guest does not take {line!r}: {problem}") from problem
        finally:
            stream.setblocking(False)

    # -- signals and logs

    def _on_interrupt(self, number, frame):
        """The first Ctrl-C is the command's, once that runs; the next ends the lab."""
        if self._began is None or self._interrupted:
            signal.default_int_handler(number, frame)
        self._interrupted = True
        self._tell_guest("signal INT")

    def _write_logs(self):
        with open(os.path.join(self._folder, "console.log"), "wb") as log:
            log.write(self._console)
        if not self._options.dmesg:
            return
        with open(self._options.dmesg, "wb") as log:
            if not self._dmesg:
                log.write(b"(the guest did not send its log; this is its console)\n")
            log.write(self._dmesg or self._console)


def write_all(descriptor, data):
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view):]
    except OSError as problem:
        name = {1: "stdout", 2: "stderr"}[descriptor]
        raise LabError(f"the command's output cannot be passed on to {name}: {problem.strerror}") from problem
