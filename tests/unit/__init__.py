import pytest

pytest.register_assert_rewrite("tests.unit.command_conformance")
