"""The `stripefs` command and mount(8)'s `mount.stripefs`: the outermost room, and the only one with click."""
