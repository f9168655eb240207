"""The wall clock's voice on the log: time limits, silence, lost workers, offers nobody took, backoffs that are over.

``core`` decides (pure); ``app`` looks at the clock and the log. Whatever it says is an event like any other, so that
a replay never asks the time.
"""
