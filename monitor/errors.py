"""Every exception of our own, in one tree.

MonitorError
├── UndecodableRecord      bytes of one of our own topics do not decode
├── InvalidSettings        the environment or a settings file is wrong (all faults at once)
├── NonAggregableTraceError  monitor.trace.guard: a trace that must not become a scalar
├── PartitionRefused       a partition that cannot be restored; its lane goes on without it
├── TopicMismatch          a topic differs from what the state was made with
└── MissingProgram         a program or file of the set-up is not on this machine
"""

from __future__ import annotations


class MonitorError(Exception):
    """Base of all errors raised by the monitor: says what was wrong, with which value, what to do next."""


class UndecodableRecord(MonitorError):
    """Bytes of one of our own topics do not decode."""


class InvalidSettings(MonitorError):
    """Settings are wrong; the message lists every fault."""


class PartitionRefused(MonitorError):
    """This partition cannot be restored; the message names the command that cures it."""


class TopicMismatch(MonitorError):
    """A topic is missing or differs from what is needed; the message says in what."""


class MissingProgram(MonitorError):
    """A needed program is not on this machine; the message says how to get it."""


class NonAggregableTraceError(MonitorError, RuntimeError):
    """A trace that must not be reduced: the message says what about it, and what to do instead."""
