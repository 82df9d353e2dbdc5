"""The settings of fedsim: its folders, addresses and limits, read once from the environment."""

from jobs.settings.limits import Limits
from jobs.settings.settings import JOB_ID, MODEL_FILE, Settings, check_token
from jobs.settings.variables import SECRETS_VARIABLE

__all__ = ["JOB_ID", "MODEL_FILE", "SECRETS_VARIABLE", "Limits", "Settings", "check_token"]
