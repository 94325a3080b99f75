"""Kubernetes: Event and Pod objects as `kubectl get events,pods -o json` prints them.

Events have times of whole seconds; the message of `Pulled` tells the pull's duration in milliseconds, which is used.
The job and the run come from labels of the Pods, where those are among the objects.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from imagefs.startup.importers.events import Imported, duration_ns, json_objects, time_ns

__all__ = ["read"]

_PULLED = re.compile(
    r'Successfully pulled image "(.+)" in ([^ (]+)(?: ?\((.+) including waiting\))?(?:\. Image size: (\d+) bytes\.)?'
)
_PRESENT = re.compile(r'Container image "(.+)" already present on machine.*')
_ASSIGNED = re.compile(r"Successfully assigned \S+ to (\S+)")
_CONTAINER = re.compile(r"spec\.(?:initC|c|ephemeralC)ontainers\{(.+)\}")
_START = ("Scheduled", "Pulling", "Pulled", "Failed", "Created", "Started")
_RESOLUTION = 2 * 10**9
"""By so much may a time of an event differ from the real one."""

_JOB = ("batch.kubernetes.io/job-name", "job-name", "jobset.sigs.k8s.io/jobset-name",
        "training.kubeflow.org/job-name")  # fmt: skip
_RUN = ("jobset.sigs.k8s.io/jobset-uid", "batch.kubernetes.io/controller-uid", "controller-uid")
_INDEX = "batch.kubernetes.io/job-completion-index"


class _Pull(NamedTuple):
    """A pull as its message tells it, in nanoseconds: alone, and with the wait for others."""

    image: str
    alone: int
    lasted: int
    size: int | None


@dataclass
class _Container:
    """The first moment of each reason. pull is None where the image was present."""

    at: dict[str, int] = field(default_factory=dict)
    image: str = ""
    pull: _Pull | None = None


@dataclass
class _Pod:
    line: int
    where: dict[str, Any] = field(default_factory=dict)
    created: int | None = None
    scheduled: int | None = None
    sandbox: int | None = None
    containers: dict[str, _Container] = field(default_factory=dict)
    finished: list[tuple[str, int, int]] = field(default_factory=list)


def read(text: str, imported: Imported) -> None:
    pods: dict[str, _Pod] = {}
    for line, document in json_objects(text, imported):
        with imported.row(line):
            if document.get("kind") == "Pod":
                _pod(line, document, pods)
            elif document.get("kind") == "Event":
                about = document.get("involvedObject") or document.get("regarding") or {}
                if about.get("kind") == "Pod" and document.get("reason") in _START:
                    _event(line, document, about, pods)
                else:
                    imported.pass_over(str(document.get("reason")))
            else:
                raise ValueError(f"the kind {document.get('kind')!r} is neither Event nor Pod")
    for name, pod in pods.items():
        with imported.row(pod.line):
            _emit(name, pod, imported)


def _event(line: int, document: dict[str, Any], about: dict[str, Any], pods: dict[str, _Pod]) -> None:
    reason, message = document["reason"], document.get("message") or document.get("note") or ""
    first = document.get("firstTimestamp") or document.get("eventTime") or document.get("deprecatedFirstTimestamp")
    if not first:
        raise ValueError(f"the event {reason} has no time")
    at = time_ns(first)
    pod = pods.setdefault(f"{about.get('namespace', '')}/{about['name']}", _Pod(line))
    source = document.get("source") or document.get("deprecatedSource") or {}
    if reason == "Scheduled":
        pod.scheduled = at if pod.scheduled is None else min(pod.scheduled, at)
        assigned = _ASSIGNED.search(message)
        host = assigned[1] if assigned else ""
    else:
        host = source.get("host") or document.get("reportingInstance") or ""
    if host:
        pod.where.setdefault("node", host)
    if reason == "Scheduled":
        return
    inside = _CONTAINER.fullmatch(about.get("fieldPath", ""))
    if not inside:
        raise ValueError(f"the event {reason} names no container")
    container = pod.containers.setdefault(inside[1], _Container())
    if reason == "Failed" and not message.startswith("Failed to pull"):
        return
    if at >= container.at.get(reason, at + 1):
        return
    if reason == "Pulled":
        pulled, present = _PULLED.fullmatch(message), _PRESENT.fullmatch(message)
        if pulled:
            alone = duration_ns(pulled[2])
            lasted = max(alone, duration_ns(pulled[3])) if pulled[3] else alone
            container.pull = _Pull(pulled[1], alone, lasted, int(pulled[4]) if pulled[4] else None)
        elif present:
            container.image, container.pull = present[1], None
        else:
            raise ValueError("the message of Pulled is none that kubelets write")
    container.at[reason] = at


def _pod(line: int, document: dict[str, Any], pods: dict[str, _Pod]) -> None:
    metadata, status = document["metadata"], document.get("status") or {}
    pod = pods.setdefault(f"{metadata.get('namespace', '')}/{metadata['name']}", _Pod(line))
    labels = (metadata.get("labels") or {}) | (metadata.get("annotations") or {})
    index = labels.get(_INDEX, "")
    pod.where |= {
        "job": next((labels[name] for name in _JOB if name in labels), ""),
        "run": next((labels[name] for name in _RUN if name in labels), ""),
        "node": (document.get("spec") or {}).get("nodeName", ""),
        "rank": int(index) if index.isdecimal() else None,
    }
    pod.created = time_ns(metadata["creationTimestamp"])
    met = {one["type"]: time_ns(one["lastTransitionTime"]) for one in status.get("conditions") or ()
           if one.get("status") == "True" and one.get("lastTransitionTime")}  # fmt: skip
    pod.scheduled = met.get("PodScheduled", pod.scheduled)
    pod.sandbox = met.get("PodReadyToStartContainers")
    for one in status.get("containerStatuses") or ():
        state = one.get("state") or {}
        started = (state.get("running") or state.get("terminated") or {}).get("startedAt")
        if started and not one.get("restartCount"):
            pod.containers.setdefault(one["name"], _Container()).at.setdefault("Started", time_ns(started))
    for one in status.get("initContainerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("startedAt") and ended.get("finishedAt"):
            pod.finished.append((one["name"], time_ns(ended["startedAt"]), time_ns(ended["finishedAt"])))


def _emit(name: str, pod: _Pod, imported: Imported) -> None:
    """The events of a pod. Times of whole seconds may stand in the wrong order: a span then has no length."""
    where, facts = pod.where, {"pod": name}
    if pod.created is not None and pod.scheduled is not None:
        scheduled = max(pod.created, pod.scheduled)
        imported.span("queue", name, pod.created, scheduled, kind="wait", facts={"cause": "queue"}, **where)
    elif pod.scheduled is not None:
        imported.event("instant", "queue", f"scheduled {name}", pod.scheduled, **where)
    begun = [at for one in pod.containers.values() for reason, at in one.at.items() if reason != "Started"]
    sandbox = min(begun, default=pod.sandbox)
    if pod.scheduled is not None and sandbox is not None:
        imported.span("container", f"sandbox {name}", pod.scheduled, max(sandbox, pod.scheduled), **where)
    for init, start, finish in pod.finished:
        imported.span("container", f"init {init}", start, finish, facts=facts, **where)
    for container, one in pod.containers.items():
        if "Pulled" in one.at:
            _pull(one, facts, where, imported)
        elif "Failed" in one.at:
            failed = {**facts, "error": "ErrImagePull"}
            imported.event("instant", "image", "pull failed", one.at["Failed"], facts=failed, **where)
        since = one.at.get("Pulled", one.at.get("Created", sandbox if sandbox is not None else pod.scheduled))
        if since is not None and "Started" in one.at:
            imported.span("container", container, since, max(since, one.at["Started"]), facts=facts, **where)


def _pull(one: _Container, facts: dict[str, Any], where: dict[str, Any], imported: Imported) -> None:
    """The pull of an image: as long as the message of Pulled says, longer where attempts before it failed."""
    end, pull = one.at["Pulled"], one.pull
    if pull is None:
        facts = {**facts, "image": one.image, "hits": 1, "source": "cache"}
        imported.event("instant", "image", "present", end, facts=facts, **where)
        return
    begin = end - pull.lasted
    if one.at.get("Pulling", end) < begin - _RESOLUTION:
        begin = one.at["Pulling"]
    of_image = {**facts, "image": pull.image, "misses": 1, **({"bytes": pull.size} if pull.size else {})}
    span = imported.span("image", f"pull {pull.image}", begin, end, facts=of_image, **where)
    if pull.lasted > pull.alone:
        imported.span("image", "pull queue", end - pull.lasted, end - pull.alone, kind="wait", parent=span,
                      facts={**facts, "cause": "queue"}, **where)  # fmt: skip
