"""What tests judge may begin with their module, a few jobs at a time: most of these jobs wait most of their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

MOST_AT_ONCE = 6
_JOB = "job_that_begins_with_the_module"


def ahead(job: Callable[..., Any]) -> Callable[[Any], Any]:
    """Let a test's job begin with the module. The job gets a folder and the test's parameters; the test gets `ran`."""

    def noted(test: Any) -> Any:
        setattr(test, _JOB, job)
        return test

    return noted


@pytest.fixture(scope="module", autouse=True)
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """The jobs of those tests of the module that will be run, by the tests' names. They are started warm."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    tests = [test for test in tests if test.getparent(pytest.Module) is request.node and hasattr(test.function, _JOB)]
    if tests:
        request.getfixturevalue("warm")
    jobs = {}
    with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
        for test in tests:
            folder: Path = tmp_path_factory.mktemp("job")
            parameters = test.callspec.params if hasattr(test, "callspec") else {}
            jobs[test.name] = pool.submit(getattr(test.function, _JOB), folder, **parameters)
        yield jobs
        for job in jobs.values():
            job.cancel()


@pytest.fixture
def ran(begun: dict[str, Future[Any]], request: pytest.FixtureRequest) -> Any:
    """What the test's job returned, or raises what it raised."""
    return begun[request.node.name].result()
