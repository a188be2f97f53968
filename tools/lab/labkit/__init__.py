"""The parts of the lab: options, drives, the guest's file system, the machine and its dialogue."""


class LabError(Exception):
    """The lab itself failed (exit status 125): the message says what was seen and what to do."""


class UsageError(Exception):
    """The caller's options make no sense (exit status 2)."""
