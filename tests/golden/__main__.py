"""`python -m tests.golden` records the digests of every case on this processor, into digests.json."""

from jobs.settings import Settings
from tests.golden.recording import record

if __name__ == "__main__":
    record(Settings.from_env())
