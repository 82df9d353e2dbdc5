# One image for every part of a deployment: the service, the head of the Ray cluster and its workers. They have to be the
# same, because jobs run on the head and actors on the workers. compose.yaml and docs/operations.md use it.
#
#     docker build --tag fedsim .
#     docker build --tag fedsim --build-arg PIP_EXTRA_INDEX_URL=URL .    # wheels from elsewhere, e.g. PyTorch for CPUs only

FROM python:3.11-slim-bookworm

ARG PIP_EXTRA_INDEX_URL=""

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    FEDSIM_HOME=/var/lib/fedsim

# The owner of everything that is written; the number matters where a volume is shared.
RUN useradd --create-home --uid 10001 fedsim \
    && install --directory --owner=fedsim --group=fedsim --mode=0700 "$FEDSIM_HOME"

WORKDIR /opt/fedsim

COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY fedsim ./fedsim
COPY actors ./actors
COPY jobs ./jobs
COPY api ./api

RUN pip install --constraint constraints.txt '.[aws,postgres,text]'

# Away from the sources, so that what was installed is what runs.
WORKDIR /var/lib/fedsim
USER 10001
VOLUME /var/lib/fedsim
EXPOSE 8000
STOPSIGNAL SIGTERM

HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]

# Beyond loopback the service refuses to start without a token: set FEDSIM_TOKEN, or add --token-file.
CMD ["fedsim", "serve", "--host", "0.0.0.0", "--log-format", "json"]
