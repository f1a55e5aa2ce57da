# One image for every command: docker run tirgemm serve | worker | tune GEMM | keys ...
# BASE is any Debian 12 or later with apt. gcc stays in the image because a CPU kernel is linked by it, without what only
# compiles; a CUDA kernel is compiled by NVRTC, which Python's packages bring.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS base
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev python3 \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt /var/log/apt /var/log/dpkg.log /usr/include \
    && rm /usr/lib*/gcc/*/*/cc1 /usr/lib*/gcc/*/*/lto1 /usr/bin/*lto-dump* /usr/lib/*/lib[alt]san.so* \
    && find /usr/lib -name '*.a' ! -name 'libgcc*' ! -name '*_nonshared.a' -delete \
    && useradd --system --no-create-home --home-dir /data --uid 10001 --user-group tirgemm \
    && install --directory --owner=tirgemm --group=tirgemm /data \
    && install --directory --mode=1777 /tmp/tirgemm-locks

FROM ${BASE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008,DL3009
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ca-certificates g++ python3-venv
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=/var/cache/pip
COPY requirements-service.lock ./
RUN --mount=type=cache,target=/var/cache/pip \
    python3 -m venv /opt/tirgemm \
    && /opt/tirgemm/bin/pip install --no-compile --requirement requirements-service.lock \
    && find /opt/tirgemm/lib -depth \( -type d -name tests -o -name '*.pyx' -o -name '*.pxd' \) -exec rm -r {} + \
    && rm -r /opt/tirgemm/lib/python3*/site-packages/tvm/3rdparty
# tirgemm/service, tirgemm/tuning_db and tirgemm/bench/shapes are links to the folders copied below.
COPY pyproject.toml setup.py README.md LICENSE ./
COPY tirgemm tirgemm
COPY tuning_db tuning_db
COPY service service
COPY benchmarks/suites benchmarks/suites
COPY benchmarks/results benchmarks/results
# The modules that are used are compiled by being used: the root may be read-only later.
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/tirgemm/bin/pip install --no-compile --no-deps . \
    && /opt/tirgemm/bin/pip uninstall --yes setuptools pip \
    && /opt/tirgemm/bin/tirgemm tune 65x63x67:f16:nn --device cpu --effort quick --data /tmp/data \
    && /opt/tirgemm/bin/python -c "import tirgemm.service.server.process, tirgemm.service.commands.worker, psycopg" \
    && /opt/tirgemm/bin/python -c "import sqlalchemy.dialects.postgresql.psycopg, cuda.bindings.driver, pynvml"

# What the image consists of.
FROM build AS bill
COPY requirements.lock scripts/image_sbom.py ./
RUN --mount=type=cache,target=/var/cache/pip \
    python3 -m venv /opt/bill \
    && /opt/bill/bin/pip install --constraint requirements.lock cyclonedx-python-lib
COPY --from=base /var/lib/dpkg/status dpkg-status
RUN /opt/bill/bin/python image_sbom.py /opt/tirgemm/lib/python3*/site-packages dpkg-status sbom.cdx.json

FROM base AS runtime
# HOME is in the volume: the root may be read-only.
ENV PATH=/opt/tirgemm/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/data TIRGEMM_DATA=/data \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build /opt/tirgemm /opt/tirgemm
COPY --from=bill /src/sbom.cdx.json /usr/share/doc/tirgemm/sbom.cdx.json
LABEL org.opencontainers.image.title=tirgemm \
    org.opencontainers.image.description="Half-precision matrix multiplies: tuned, verified, signed, served." \
    org.opencontainers.image.licenses=Apache-2.0
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python3", "-c", \
    "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["tirgemm"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
