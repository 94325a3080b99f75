"""On-disk formats of stripefs, pure: blocks, manifests with checksums, reserved names, lock and record documents."""
