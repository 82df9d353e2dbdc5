"""The edge of fedsim: REST, the page, the command line and the SDK, over `jobs`."""

import fedsim

if getattr(fedsim, "DISTRIBUTION", None) != "fedsim-ray":
    raise ImportError(
        f"{fedsim.__file__} belongs to another package called fedsim, which hides or overwrites this one; "
        "run: pip uninstall fedsim, then install fedsim-ray again"
    )
