"""Programs that write checkpoints and files, as functions of the directory they write into.

Each makes what it writes first in memory or in a plain directory beside (`Place.aside`), runs the real program where it
is at hand and else its exact pattern of system calls, and answers which file must hold which bytes afterwards. They
know nothing of mounts: tests run them on a plain directory as well, which checks these programs themselves.
"""

from tests.support.write_programs import calls, checkpoints, commands
from tests.support.write_programs.place import Expected, Place, Program

__all__ = ["IN_ORDER", "OUT_OF_ORDER", "Expected", "Place", "Program"]

IN_ORDER: tuple[Program, ...] = (
    checkpoints.numpy_save,
    checkpoints.safetensors,
    checkpoints.torch_save,
    checkpoints.distributed_checkpoint,
    checkpoints.close_and_replace,
    commands.cp,
    commands.rsync,
    commands.tar,
    calls.shell,
    calls.single_bytes,
    calls.one_large_write,
    calls.direct,
    calls.synced_again_and_again,
    calls.copying_inside,
)
"""Programs that must work without staging."""

OUT_OF_ORDER: tuple[Program, ...] = (
    checkpoints.numpy_savez,
    checkpoints.numpy_memmap,
    commands.rsync_in_place,
    commands.zip_command,
    commands.sqlite,
    calls.seeking_back,
    calls.mapping,
)
"""Programs that need staging; without it they are refused with a message."""
