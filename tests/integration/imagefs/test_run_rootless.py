"""Containers of a plain user, who is root in a user namespace: `imagefs run` as it is, by the tree plane."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.imagefs.conftest import by_nobody
from tests.support.other_users import NOBODY
from tests.tools.containers import fill
from tests.tools.imagefs_daemon import Service, built

pytestmark = [pytest.mark.mount, pytest.mark.root]

SCRIPT = """
image=$1#small bound=$2 runtime=$3
in_image() { imagefs run --oci-runtime $runtime "$@"; echo "ended $?"; }
{
in_image --workdir /not/there $image -- sh -c '
  id -u; id -g; pwd; stat -c "%n %u %g" / /srv/data /srv/ann /run /run/job . ; wc -c </srv/data; cat /proc/self/uid_map
  touch /srv/new 2>/dev/null || echo read-only; touch /tmp/new /run/new && echo $$
  unshare -r true 2>/dev/null || echo filtered
  busybox grep -E "^(CapEff|Seccomp):" /proc/self/status; exit 7'
in_image --rw --network none --bind $bound:/bound --bind $bound:/fixed:ro --cap-drop ALL $image -- sh -c '
  echo new >/etc/passwd; rm /srv/data; mkdir -m 0 /closed; cat /etc/passwd; touch /bound/made
  touch /fixed/new 2>&1 || :
  busybox grep CapEff /proc/self/status'
in_image --memory 1GiB $image
in_image --userns auto $image
in_image --user ann $image
in_image --plane erofs $image
in_image --deps $bound/none $image
(in_image $image -- sh -c 'trap "exit 3" TERM; echo up; while :; do sleep 0.05; done') >$bound/said &
until grep -q up $bound/said; do sleep 0.05; done
kill -TERM $(pgrep -f "^$PYTHON.*run --oci-runtime $runtime $image")
wait; cat $bound/said
imagefs run --oci-runtime $runtime $image -- sh -c "touch /tmp/x; echo up; sleep 5$$" >$bound/said &
until grep -q up $bound/said; do sleep 0.05; done
kill -KILL $(pgrep -f "^$PYTHON.*run --oci-runtime $runtime $image"); wait
while pgrep -f "^sleep 5$$" >/dev/null; do sleep 0.05; done
in_image $image -- true
ls -A $HOME/run/bootseer/imagefs/runs $HOME/.cache/bootseer/imagefs/upper | grep imagefs-
} 2>&1
imagefs daemon --stop
"""

CHECKPOINT = """
image=$1#small source=$2 runtime=$3
echo step 7 >$source/model
{
imagefs run --oci-runtime $runtime --checkpoint $source:/ckpt $image -- sh -c 'cat /ckpt/model; touch /ckpt/new'
echo "ended $?"
imagefs run --oci-runtime $runtime --checkpoint $source $image -- sh -c "cat /checkpoint/model; sleep 5$$" >$HOME/said &
until grep -qs step $HOME/said; do sleep 0.05; done
kill -KILL $(pgrep -f "^$PYTHON.*run --oci-runtime $runtime --checkpoint $source $image"); wait
while grep -q imagefs/runs /proc/mounts; do sleep 0.05; done
imagefs run --oci-runtime $runtime $image
ls -A $HOME/run/bootseer/imagefs/runs
} 2>&1
imagefs daemon --stop
"""

OWNERS = "/ 0 0\n/srv/data 0 0\n/srv/ann 0 0\n/run 0 0\n/run/job 0 0\n. 0 0\n"
FIRST = f"0\n0\n/not/there\n{OWNERS}200000\n         0      65534          1\nread-only\n1\nfiltered\n"
RIGHTS = "CapEff:\t00000000a80425fb\nSeccomp:\t2\nended 7\n"
SECOND = "new\ntouch: /fixed/new: Read-only file system\nCapEff:\t0000000000000000\nended 0\n"
REFUSED = (
    "imagefs: --memory, --cpus, --pids-limit, --cgroup-parent and --userns need root; sudo\nended 125\n" * 2
    + "imagefs: a container without root has no user 1234:100; --user 0, or sudo\nended 125\n"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "root"
    fill(root)
    (root / "srv/ann").touch()
    (root / "run/job").mkdir()
    for name in ("srv/ann", "run/job"):
        os.chown(root / name, 1234, 100)
    path = tmp_path_factory.mktemp("store")
    built(root, path, "small", {"config": {"Env": ["PATH=/bin"], "Cmd": ["true"]}})
    return path


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_containers_without_root(service: Service, store: Path, open_path: Path, runtime: str) -> None:
    done = by_nobody(service, store, open_path, SCRIPT, runtime)
    assert done.stdout.startswith(FIRST + RIGHTS + SECOND + REFUSED), done.stdout + done.stderr
    rest = done.stdout.removeprefix(FIRST + RIGHTS + SECOND + REFUSED).splitlines()
    rest = [line for line in rest if "Killed" not in line]  # by this test, as its shell says
    assert [line for line in rest if line.startswith("ended")] == ["ended 125", "ended 2", "ended 3", "ended 0"]
    assert "mounting needs root" in rest[0]
    assert "--deps needs root" in rest[2]
    assert rest[-3:] == ["up", "ended 3", "ended 0"]
    assert (open_path / "home/own/made").stat().st_uid == NOBODY
    assert done.stderr == ""


def test_a_checkpoint_without_root(service: Service, store: Path, open_path: Path) -> None:
    done = by_nobody(service, store, open_path, CHECKPOINT, "crun")
    said = [line for line in done.stdout.splitlines() if "Killed" not in line]
    assert said == ["step 7", "touch: /ckpt/new: Read-only file system", "ended 1", ".lock"], done.stdout + done.stderr
