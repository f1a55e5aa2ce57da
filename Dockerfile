# One image for `serve`, `worker` and `tune`: docker run tirgemm serve | worker | tune GEMM
# BASE is any Debian 12 or later with apt; g++ stays in the runtime image because a CPU kernel is linked with it.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements-service.lock ./
RUN python3 -m venv /opt/tirgemm && /opt/tirgemm/bin/pip install --requirement requirements-service.lock
# tirgemm/service, tirgemm/tuning_db and tirgemm/bench/shapes are links to the folders copied below.
COPY pyproject.toml setup.py README.md LICENSE ./
COPY tirgemm tirgemm
COPY tuning_db tuning_db
COPY service service
COPY benchmarks/suites benchmarks/suites
RUN /opt/tirgemm/bin/pip install --no-deps .

FROM ${BASE} AS runtime
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV DEBIAN_FRONTEND=noninteractive PATH=/opt/tirgemm/bin:$PATH PYTHONUNBUFFERED=1
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates g++ python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home --uid 10001 tirgemm \
    && install --directory --owner=tirgemm --group=tirgemm /data
COPY --from=build /opt/tirgemm /opt/tirgemm
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
ENV TIRGEMM_DATA=/data
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["tirgemm"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
