import pytest

from jobs.local_ray import ensure_ray, stop_ray
from jobs.settings import Settings


@pytest.fixture(scope="session")
def ray_home(tmp_path_factory):
    """A home whose local Ray runs; one for all tests, because each start costs seconds."""
    settings = Settings(tmp_path_factory.mktemp("home"), ray_num_cpus=4)
    ensure_ray(settings)
    yield settings.home
    stop_ray(settings)
