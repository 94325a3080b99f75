"""Uploads of two mounts that fail and die at any call to the store: only what was published stands, whole."""

from __future__ import annotations

from stripefs.write import Layout
from tests.model.uploads import Uploads
from tests.support.examples import examples

TestUploads = Uploads.TestCase
TestUploads.settings = examples(40, steps=25)


def test_a_published_file_that_is_begun_anew_and_given_up_leaves_no_folder() -> None:
    """It has stored no part yet, so there is nothing to remove but the folder."""
    uploads = Uploads()
    uploads.begin_all()
    uploads.save(anew=False, layout=Layout.STRIPED, name="left", path=b"/a", then="publish")
    uploads.rewind(fault=None, pick=0)
    uploads.write(fault=None, pick=0, size=200 << 10)
    uploads.abandon(fault=None, pick=0)
    uploads.nothing_is_left_of_what_has_ended()
    uploads.teardown()
