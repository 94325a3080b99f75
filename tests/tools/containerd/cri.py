"""A client of containerd's CRI plugin, as kubelet is one: pulls images, runs pods and containers."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

__all__ = ["Cri", "messages"]

_PATIENCE = 120.0


@functools.cache
def messages() -> Any:
    """The module that protoc makes of `cri.proto`."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(__file__).parent
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{here}", f"--python_out={folder}", "cri.proto"]
        subprocess.run(command, check=True, capture_output=True)
        sys.path.insert(0, folder)
        try:
            import cri_pb2
        finally:
            sys.path.remove(folder)
    return cri_pb2


class Cri:
    """That of the containerd at `socket`. Errors are grpc.RpcErrors."""

    def __init__(self, socket: Path, logs: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._logs = logs
        self._pods: dict[str, Any] = {}

    def close(self) -> None:
        self._channel.close()

    def version(self) -> str:
        return str(self._runtime("Version", messages().VersionRequest(), "VersionResponse").runtime_version)

    def pull(self, image: str, user: str = "", password: str = "", handler: str = "") -> str:
        """Reference of the image. handler: of the pods that it is for, told in both ways that kubelet knows."""
        wire = messages()
        auth = wire.AuthConfig(username=user, password=password) if user else None
        request = wire.PullImageRequest(image=wire.ImageSpec(image=image, runtime_handler=handler), auth=auth)
        if handler:
            request.sandbox_config.annotations["io.containerd.cri.runtime-handler"] = handler
        return str(self._image("PullImage", request, "PullImageResponse").image_ref)

    def remove_image(self, image: str) -> None:
        wire = messages()
        request = wire.RemoveImageRequest(image=wire.ImageSpec(image=image))
        self._image("RemoveImage", request, "RemoveImageResponse")

    def pod(self, handler: str = "") -> str:
        """A pod in the host's network namespace."""
        wire = messages()
        name = uuid.uuid4().hex
        config = wire.PodSandboxConfig(
            metadata=wire.PodSandboxMetadata(name=name, uid=name, namespace="default"),
            log_directory=str(self._logs),
            linux=wire.LinuxPodSandboxConfig(
                security_context=wire.LinuxSandboxSecurityContext(
                    namespace_options=wire.NamespaceOption(network=wire.NODE)
                )
            ),
        )
        request = wire.RunPodSandboxRequest(config=config, runtime_handler=handler)
        pod = str(self._runtime("RunPodSandbox", request, "RunPodSandboxResponse").pod_sandbox_id)
        self._pods[pod] = config
        return pod

    def create(
        self,
        pod: str,
        image: str,
        command: Sequence[str],
        *,
        annotations: Mapping[str, str] | None = None,
    ) -> str:
        """A container that is not started yet."""
        wire = messages()
        name = uuid.uuid4().hex
        config = wire.ContainerConfig(
            metadata=wire.ContainerMetadata(name=name),
            image=wire.ImageSpec(image=image),
            command=command,
            annotations=annotations or {},
            log_path=f"{name}.log",
            linux=wire.LinuxContainerConfig(
                security_context=wire.LinuxContainerSecurityContext(
                    namespace_options=wire.NamespaceOption(network=wire.NODE, pid=wire.CONTAINER)
                )
            ),
        )
        request = wire.CreateContainerRequest(pod_sandbox_id=pod, config=config, sandbox_config=self._pods[pod])
        return str(self._runtime("CreateContainer", request, "CreateContainerResponse").container_id)

    def start(self, container: str) -> None:
        self._runtime("StartContainer", messages().ContainerRequest(container_id=container), "Empty")

    def run(self, pod: str, image: str, command: Sequence[str], **options: Any) -> str:
        container = self.create(pod, image, command, **options)
        self.start(container)
        return container

    def status(self, container: str) -> Any:
        request = messages().ContainerRequest(container_id=container)
        return self._runtime("ContainerStatus", request, "ContainerStatusResponse").status

    def exec(self, container: str, *command: str) -> tuple[int, str]:
        """Exit code and output of a command in a running container."""
        request = messages().ExecSyncRequest(container_id=container, cmd=command, timeout=60)
        done = self._runtime("ExecSync", request, "ExecSyncResponse")
        return done.exit_code, (done.stdout + done.stderr).decode()

    def remove_container(self, container: str) -> None:
        self._runtime("RemoveContainer", messages().ContainerRequest(container_id=container), "Empty")

    def remove_pods(self) -> None:
        for pod in list(self._pods):
            request = messages().PodSandboxRequest(pod_sandbox_id=pod)
            self._runtime("StopPodSandbox", request, "Empty")
            self._runtime("RemovePodSandbox", request, "Empty")
            del self._pods[pod]

    def _image(self, method: str, request: Any, answer: str) -> Any:
        return self._call("ImageService", method, request, answer)

    def _runtime(self, method: str, request: Any, answer: str) -> Any:
        return self._call("RuntimeService", method, request, answer)

    def _call(self, service: str, method: str, request: Any, answer: str) -> Any:
        call = self._channel.unary_unary(
            f"/runtime.v1.{service}/{method}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=getattr(messages(), answer).FromString,
        )
        return call(request, timeout=_PATIENCE, wait_for_ready=True)
