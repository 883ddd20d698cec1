"""These tests are set up as those of the library are, whether both run or these alone."""

from tests.conftest import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.conftest import pytest_configure as pytest_configure
