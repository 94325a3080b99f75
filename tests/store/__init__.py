import pytest

pytest.register_assert_rewrite("tests.store.conformance", "tests.store.version_conformance")
