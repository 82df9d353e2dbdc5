import pytest

from jobs.local_ray.embedded_ray import ensure_ray, stop_ray
from jobs.settings import Settings
from jobs.store.job_store import JobStore
from tests.databases import KINDS, empty_database
from tests.jobs.desk import Desk


@pytest.fixture(scope="session")
def ray_home(tmp_path_factory):
    """A home whose local Ray runs; one for all tests, because each start costs seconds."""
    # It would end between two tests that need it.
    settings = Settings(tmp_path_factory.mktemp("home"), ray_num_cpus=4, ray_idle_seconds=3600)
    ensure_ray(settings)
    yield settings.home
    stop_ray(settings)


@pytest.fixture(params=KINDS)
def url(request, tmp_path):
    """The URL of an empty database, of each kind in turn."""
    with empty_database(request.param, tmp_path) as made:
        yield made


@pytest.fixture
def store(url):
    with JobStore.open(url) as opened:
        yield opened


@pytest.fixture
def desk(store, url, tmp_path):
    return Desk(store, url, tmp_path / "home")


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path)
