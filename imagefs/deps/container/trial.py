"""The trial of what was installed for a container (`--deps-probe`): in one of the same image, with that above it."""

from __future__ import annotations

from collections.abc import Sequence

from imagefs.containers import Image
from imagefs.deps.container.programs import inside, output_of
from imagefs.errors import LayerFailed
from imagefs.run.container import MountLayer
from imagefs.run.options import RunOptions
from stripefs.errors import StripefsError

__all__ = ["failure", "options_for"]


def options_for(options: RunOptions, python: str, code: str, targets: Sequence[str]) -> RunOptions:
    """A container like the job's, for `python -c code` with the packages of these targets besides."""
    found = inside(options, [python, "-c", code])
    return found._replace(env=[*found.env, *(f"PYTHONPATH={target}" for target in targets)])


def failure(image: Image, options: RunOptions, layer: MountLayer) -> str:
    """Why it fails with this above the image, in one line; "" where it does not.

    Raises LayerFailed where the one or the other cannot be mounted.
    """
    try:
        output_of(lambda given: image.run(given, [layer]), options)
    except LayerFailed:
        raise
    except (StripefsError, OSError) as error:
        return str(error)
    return ""
