"""A whole job by one command or one file: image, dependencies, checkpoint, start-up caches and events."""
