"""The edge of fedsim: REST, the page, the command line and the SDK, over `jobs`."""
