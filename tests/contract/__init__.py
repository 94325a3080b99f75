import pytest

pytest.register_assert_rewrite(
    "tests.contract.commands",
    "tests.contract.listing",
    "tests.contract.namespace",
    "tests.contract.putting",
    "tests.contract.reading",
    "tests.contract.versions",
    "tests.contract.writing",
)
