"""What Lightning itself warns of, in every test with its Trainer."""

import pytest

LIGHTNING = (
    "ignore:.*does not have many workers.*",
    "ignore:.*`isinstance.treespec, LeafSpec.` is deprecated.*",
    "ignore:.*exists and is not empty.*",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/integrations/lightning" in str(item.path):
            for warning in LIGHTNING:
                item.add_marker(pytest.mark.filterwarnings(warning))
