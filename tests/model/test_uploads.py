"""Uploads of two mounts that fail and die at any call to the store: only what was published stands, whole."""

from __future__ import annotations

from tests.model.uploads import Uploads
from tests.support.examples import examples

TestUploads = Uploads.TestCase
TestUploads.settings = examples(40, steps=25)
