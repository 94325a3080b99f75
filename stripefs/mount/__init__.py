"""Programs under the names by which supervisors of earlier versions start them, so that mounts are upgraded live."""
