# One image for the service, the head of the Ray cluster and its workers. All must have the same version, because jobs run
# on the head and clients train on the workers. compose.yaml and docs/operations.md use this image.
#
#     docker build --tag fedsim .
#     docker build --tag fedsim --build-arg PIP_EXTRA_INDEX_URL=URL .    # another index for wheels, such as PyTorch for CPUs

FROM python:3.11.13-slim-bookworm

ARG PIP_EXTRA_INDEX_URL=""

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    FEDSIM_HOME=/var/lib/fedsim

# The owner of all files that fedsim writes. The number must be the same for all containers that share a volume.
RUN useradd --create-home --uid 10001 fedsim \
    && install --directory --owner=fedsim --group=fedsim --mode=0700 "$FEDSIM_HOME" /var/lib/ray

WORKDIR /opt/fedsim

# The libraries come before the code, so that a change of the code does not install them again.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; print(*p['dependencies'], *(d for n in e if n not in ('dev', 'docs') for d in e[n]), sep='\n')" > /tmp/needed.txt \
    && pip install --constraint constraints.txt --requirement /tmp/needed.txt

COPY setup.py ray_cluster.yaml README.md LICENSE ./
COPY fedsim ./fedsim
COPY actors ./actors
COPY jobs ./jobs
COPY api ./api

RUN pip install --constraint constraints.txt '.[aws,postgres,table,text,timm,peft,privacy,tune,tensorboard,mlflow,wandb,onnx]'

# Not the source folder: Python must import the installed packages.
WORKDIR /var/lib/fedsim
USER 10001
VOLUME /var/lib/fedsim
EXPOSE 8000
STOPSIGNAL SIGTERM

HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]

# On this address the service does not start without a token: set FEDSIM_TOKEN, or add --token-file.
CMD ["fedsim", "serve", "--host", "0.0.0.0", "--log-format", "json"]
