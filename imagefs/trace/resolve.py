"""From pages of devices to extents of files: what was recorded becomes a trace that outlives the image's layout.

The image is walked once. Of its extents only those of which a page was touched are kept, so memory follows the start
and not the image. Each then takes the time of the first run of pages that reaches it.
"""

from __future__ import annotations

from bisect import bisect_right

from imagefs.errors import FormatError
from imagefs.format.trace import Touch
from imagefs.trace.record import Recorder
from imagefs.trace.target import Extent, Target

__all__ = ["resolve"]


def resolve(recorder: Recorder, target: Target) -> list[Touch]:
    """What `recorder` saw of the devices of `target.image`, by files, in order of first touch.

    Raises FormatError when these are not the devices it was recorded on.
    """
    if len(recorder.sizes) != len(target.image.devices) or any(
        -(-size // 4096) != device.blocks for size, device in zip(recorder.sizes, target.image.devices, strict=True)
    ):
        raise FormatError("the record of touches is of another image")
    touched = sorted(_touched(recorder, target), key=lambda extent: extent.place)
    places = [extent.place for extent in touched]
    done = bytearray(len(touched))
    found = []
    for ms, device, first, pages in recorder.touches():
        begin = device << 32 | first
        number = max(0, bisect_right(places, begin) - 1)
        while number < len(places) and places[number] < begin + pages:
            extent = touched[number]
            if not done[number] and extent.place + extent.blocks > begin:
                done[number] = True
                digest = target.digest_at(extent.cold)
                found.append(Touch(ms, extent.path, extent.offset, extent.length, digest))
            number += 1
    return found


def _touched(recorder: Recorder, target: Target) -> list[Extent]:
    """The extents of which any page was touched, the first of those that share a place."""
    found: dict[int, Extent] = {}
    for extent in target.extents():
        device, block = extent.place >> 32, extent.place & 0xFFFFFFFF
        if not 0 < device <= len(recorder.sizes):
            raise FormatError("the image has an extent in a device that it does not have")
        if recorder.touched(device, block, extent.blocks):
            found.setdefault(extent.place, extent)
    return list(found.values())
