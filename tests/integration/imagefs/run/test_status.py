"""The exit status and output of a command in a container."""

from __future__ import annotations

import pytest

from imagefs.reference import Platform
from imagefs.run.options import Bind
from tests.integration.imagefs.run.material import both
from tests.support.images.small_image import SmallImage
from tests.tools.containers import Containers

pytestmark = [pytest.mark.mount, pytest.mark.root]


@both
@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("nothing", 127, "CommandNotFound the container has no nothing"),
        ("/bin/nothing", 127, "CommandNotFound the container has no /bin/nothing"),
        ("/bin/plain", 126, "CommandNotExecutable the container cannot execute /bin/plain"),
        ("/etc", 126, "CommandNotExecutable the container cannot execute /etc"),
    ],
)
def test_a_command_that_cannot_be_run(
    containers: Containers, runtime: str, command: str, status: int, said: str
) -> None:
    ended, output, errors = containers.run(command, runtime=runtime)
    assert (ended, output) == (status, "")
    assert said in errors


def test_an_image_for_another_machine_is_told(containers: Containers) -> None:
    status, _, errors = containers.run("true", config={"architecture": "s390x"})
    assert status == 0
    assert "the image is for s390x, and this machine is" in errors
    assert containers.run("true", config={"architecture": Platform.current().architecture}) == (0, "", "")


def test_what_cannot_be_prepared_says_why(containers: Containers, image: SmallImage) -> None:
    broken = SmallImage(image.metadata, image.device + "-that-is-not-there")
    status, _, errors = containers.run("true", image=broken)
    assert (status, "LayerFailed" in errors, "EROFS refused" in errors) == (125, True, True)
    assert containers.run("true", runtime="docker")[0] == 125
    assert containers.run("true", user="bob")[0] == 125
    assert containers.run("true", devices=["/etc/passwd"])[0] == 125
    assert containers.run("true", binds=[Bind("/nothing", "/tmp/nothing")])[0] == 125
    assert containers.run()[0] == 125
