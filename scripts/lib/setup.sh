# Set-up shared by all scripts; source it, then call `need_packages`, the others that are needed, and `need_venv`.
#
# Everything is looked for before it is installed, so a second run costs well under a second. System packages that are
# missing come from apt as root; a plain user gets one line that names the command. Python packages come from the lock
# files in requirements/, digests checked, into .venv at the root of the checkout.

ROOT=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
VENV=$ROOT/.venv

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() {
    say "error: $*"
    exit 1
}

# Packages for mounting and for building pyfuse3: a command or file on the left, its Debian package on the right.
need_packages() {
    local missing=()
    command -v fusermount3 >/dev/null || missing+=(fuse3)
    command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
    command -v gcc >/dev/null || missing+=(gcc)
    [ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    [ -e /usr/include/fuse3/fuse.h ] || missing+=(libfuse3-dev)
    local python
    python=$(find_python) || missing+=(python3)
    "${python:-false}" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    "${python:-false}" -c "$HAS_HEADERS" 2>/dev/null || missing+=(python3-dev)
    apt_install "${missing[@]}"
}

# Further packages for the tests: checkers of images and of layers, a container runtime, a registry, programs that write
# files in ways of their own, a Python that is not CPython, and a browser.
need_test_packages() {
    local missing=()
    command -v fsck.erofs >/dev/null || missing+=(erofs-utils)
    command -v runc >/dev/null || missing+=(runc)
    command -v crun >/dev/null || missing+=(crun)
    command -v skopeo >/dev/null || missing+=(skopeo)
    command -v umoci >/dev/null || missing+=(umoci)
    command -v podman >/dev/null || missing+=(podman)
    command -v buildah >/dev/null || missing+=(buildah)
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    command -v docker-registry >/dev/null || missing+=(docker-registry)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    command -v chromium-headless-shell >/dev/null || missing+=(chromium-headless-shell)
    local program
    for program in rsync sqlite3 zip; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    [ -x /bin/busybox ] && ! ldd /bin/busybox >/dev/null 2>&1 || missing+=(busybox-static)
    apt_install "${missing[@]}"
    need_services containerd nginx
}

# Further packages for ./scripts/demo: its last part runs containers, for root alone.
need_demo_packages() {
    local missing=()
    [ "$(id -u)" != 0 ] || command -v runc >/dev/null || missing+=(runc)
    apt_install "${missing[@]}"
}

# Further packages for ./scripts/hdfs-cluster.
need_cluster_packages() {
    local missing=()
    find_python >/dev/null || missing+=(python3)
    command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
    command -v javac >/dev/null || missing+=(default-jdk-headless) # libhdfs needs its headers
    command -v mvn >/dev/null || missing+=(maven)
    command -v cargo >/dev/null || missing+=(cargo) # brings the sources of libhdfs
    apt_install "${missing[@]}"
}

# Further packages for ./scripts/bench image, which makes an image, serves it, and starts containers from it.
need_bench_image_packages() {
    local missing=()
    command -v debootstrap >/dev/null || missing+=(debootstrap)
    command -v mkfs.ext4 >/dev/null || missing+=(e2fsprogs)
    command -v umoci >/dev/null || missing+=(umoci)
    command -v skopeo >/dev/null || missing+=(skopeo)
    command -v runc >/dev/null || missing+=(runc)
    command -v readelf >/dev/null || missing+=(binutils)
    apt_install "${missing[@]}"
    need_services nginx docker-registry
}

# Further packages for ./scripts/bench container. The services of the packages themselves are not used.
need_bench_container_packages() {
    need_bench_image_packages
    need_services containerd
}

# Further packages for ./scripts/bench deps: a server for wheels and snapshots.
need_bench_deps_packages() { need_services nginx; }

# Further packages for ./scripts/bench compile, except torch.
need_bench_compile_packages() {
    local missing=()
    command -v runc >/dev/null || missing+=(runc)
    apt_install "${missing[@]}"
}

# Servers that benchmarks start themselves; what their packages start would only take ports.
need_services() {
    local missing=() name
    for name in "$@"; do
        command -v "$name" >/dev/null || missing+=("$name")
    done
    apt_install "${missing[@]}"
    if [ ${#missing[@]} -gt 0 ] && [ -d /run/systemd/system ]; then
        quietly systemctl disable --now "${missing[@]}"
    fi
}

HAS_HEADERS='import os, sysconfig as s; raise SystemExit(not os.path.exists(s.get_path("include") + "/Python.h"))'

# The first interpreter of 3.11 or later that really starts (a version manager may leave shims that do not).
find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13; do
        if "$name" -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

apt_install() {
    [ $# -gt 0 ] || return 0
    command -v apt-get >/dev/null || fail "these Debian packages, or what your system calls them, are missing: $*"
    [ "$(id -u)" = 0 ] || fail "packages are missing: sudo apt-get install $*"
    say "installing $*"
    quietly apt-get update
    DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "$@"
}

# need_venv [LOCK]: make .venv of requirements/LOCK.lock (dev), or bring it up to date when a lock file or pyproject.toml
# changed since it was last made. The packages of dev.lock contain those of all others in the same versions.
need_venv() {
    local lock=${1:-dev}
    (
        flock 9
        local python wanted
        if ! "$VENV/bin/python" -c '' 2>/dev/null; then
            python=$(find_python) || fail "Python 3.11 or later is missing: apt-get install python3 python3-venv"
            say "making $VENV with $python"
            rm -rf "$VENV"
            quietly "$python" -m venv "$VENV"
        fi
        wanted=$(cd "$ROOT" && cat requirements/*.lock pyproject.toml imagefs/snapshotter/proto/*.proto \
            imagefs/snapshotter/proto/build.py | sha256sum)
        case $(cat "$VENV/.made-from" 2>/dev/null) in
        "$lock $wanted" | "dev $wanted") return 0 ;;
        esac
        say "installing Python packages (a minute or two the first time)"
        local pip=("$VENV/bin/python" -m pip --disable-pip-version-check --quiet install)
        quietly "${pip[@]}" --require-hashes -r "$ROOT/requirements/build.lock"
        quietly "${pip[@]}" --require-hashes --no-build-isolation -r "$ROOT/requirements/$lock.lock"
        # A plain path: what setuptools installs otherwise is a finder that costs every command 10 ms, and no user has it.
        quietly "${pip[@]}" --no-build-isolation --no-deps --config-settings editable_mode=compat -e "$ROOT"
        printf '%s %s\n' "$lock" "$wanted" >"$VENV/.made-from"
    ) 9<"$ROOT/requirements" || exit 1
}

# The builder of the documentation, into .venv/docs, by its own lock file: no test and no other script needs it.
need_docs() {
    local folder=$VENV/docs wanted
    wanted=$(sha256sum <"$ROOT/requirements/docs.lock")
    [ "$(cat "$folder/.made-from" 2>/dev/null)" != "$wanted" ] || return 0
    say "installing the builder of the documentation"
    rm -rf "$folder"
    quietly "$VENV/bin/python" -m venv "$folder"
    quietly "$folder/bin/python" -m pip --disable-pip-version-check --quiet install --require-hashes \
        -r "$ROOT/requirements/docs.lock"
    printf '%s\n' "$wanted" >"$folder/.made-from"
}

# An interpreter of each version of Python that pyproject.toml names, as .venv/pythons/python3.N, for the tests of the
# wheel: one of PATH or of pyenv, else one that uv downloads.
need_pythons() {
    local version python
    mkdir -p "$VENV/pythons"
    for version in $(sed -n 's/.*"Programming Language :: Python :: \(3\.[0-9]*\)".*/\1/p' "$ROOT/pyproject.toml"); do
        "$VENV/pythons/python$version" -c '' 2>/dev/null && continue
        if ! python=$(find_version "$version"); then
            say "installing Python $version"
            quietly "$VENV/bin/uv" python install "$version"
            python=$("$VENV/bin/uv" python find --managed-python "$version")
        fi
        ln -sfn "$python" "$VENV/pythons/python$version"
    done
}

# find_version 3.N: the path of an interpreter of that version that really starts and can make environments.
find_version() {
    local python
    for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*"/bin/python$1"; do
        if "$python" -c 'import ensurepip, sys; print(sys.executable)' 2>/dev/null; then
            return
        fi
    done
    return 1
}

# torch and the libraries that load checkpoints, into .venv/torch, for what is started with that on PYTHONPATH: a gigabyte
# that nothing else here needs. torch's wheel is that for CUDA, which wants libraries of 3 GB; it gets stand-ins for them,
# and works without a GPU. Checkouts of one user share the folder; it is there when it is whole.
need_torch() {
    local missing=() key folder python
    command -v readelf >/dev/null || missing+=(binutils)
    command -v gcc >/dev/null || missing+=(gcc)
    command -v g++ >/dev/null || missing+=(g++) # which TorchInductor runs
    apt_install "${missing[@]}"
    python=$("$VENV/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    key=$(cd "$ROOT" && cat requirements/torch.txt bench/image/stubs.py | sha256sum)
    folder=${XDG_CACHE_HOME:-$HOME/.cache}/bootseer/torch-$python-${key:0:12}
    ln -sfn "$folder" "$VENV/torch"
    [ ! -e "$folder" ] || return 0
    mkdir -p "$(dirname "$folder")"
    (
        flock 9
        [ ! -e "$folder" ] || return 0
        say "installing torch and loaders of checkpoints (once, 900 MB)"
        rm -rf "$folder.new"
        quietly "$VENV/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --no-compile \
            --only-binary=:all: --require-hashes --target "$folder.new" -r "$ROOT/requirements/torch.txt"
        (cd "$ROOT" && quietly "$VENV/bin/python" -m bench.image.stubs "$folder.new")
        # Makes byte code of what is used, too.
        (cd "$ROOT" && PYTHONPATH=$folder.new quietly "$VENV/bin/python" -c 'import bench.checkpoint.formats')
        mv "$folder.new" "$folder"
    ) 9>"$folder.lock" || exit 1
}

# Run a command whose output matters only when it fails.
quietly() {
    local output
    output=$(mktemp)
    if ! "$@" >"$output" 2>&1; then
        tail -n 30 "$output" >&2
        rm -f "$output"
        fail "this failed: $*"
    fi
    rm -f "$output"
}
