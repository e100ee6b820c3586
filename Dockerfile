# Three images from one file. docs/containers.md says how to build, run and trust them.
#
#     docker build --target control --tag nightshift/control:0.1.0 .
#     docker build --target worker-cpu --tag nightshift/worker-cpu:0.1.0 .
#     docker build --target worker-gpu --tag nightshift/worker-gpu:0.1.0 .

# The versions; tests/deploy/test_images.py compares them with pyproject.toml and constraints.txt.
# To pin a base image to the byte, name its digest: --build-arg PYTHON_IMAGE=…@sha256:…
ARG VERSION=0.1.0
ARG VLLM_VERSION=0.32.0
ARG PYTHON_IMAGE=python:3.11-slim-trixie
ARG VLLM_IMAGE=vllm/vllm-openai:v${VLLM_VERSION}


# The build stage, of which nothing but results reaches an image.
FROM ${PYTHON_IMAGE} AS build
# Where packages come from, if not from the public index. These values reach no image.
ARG PIP_INDEX_URL
ARG UV_DEFAULT_INDEX
ARG UV_EXTRA_INDEX_URL
ARG UV_FIND_LINKS
ENV UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never UV_CACHE_DIR=/var/cache/uv
WORKDIR /src
# Debian has one version of a package in a release, and the base image names the release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml constraints.txt uv-overrides.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt uv


# Our own code as a wheel, and the example. chmod makes a clone under a strict umask readable.
FROM build AS wheel
COPY README.md LICENSE ./
COPY nightshift nightshift
COPY common common
COPY producer producer
COPY worker worker
COPY examples/reviews examples/reviews
RUN --mount=type=cache,target=/var/cache/uv \
    chmod -R a+rX . \
    && uv build --wheel --build-constraints constraints.txt --out-dir /dist


# The packages that the code needs, in layers that change only when a version changes.
FROM build AS control-packages
RUN --mount=type=cache,target=/var/cache/uv \
    uv venv /opt/nightshift \
    && uv pip install --python /opt/nightshift --compile-bytecode --constraint constraints.txt \
        --requirement pyproject.toml --extra s3 --extra gcs --extra serve --extra delta --extra iceberg


FROM build AS worker-cpu-packages
# Which builds of torch: `cpu` lets uv choose; empty takes them from the index or links above, and is
# unset, since uv refuses an empty value.
ARG UV_TORCH_BACKEND=cpu
RUN --mount=type=cache,target=/var/cache/uv \
    if [ -z "$UV_TORCH_BACKEND" ]; then unset UV_TORCH_BACKEND; fi \
    && uv venv /opt/nightshift \
    && uv pip install --python /opt/nightshift --compile-bytecode --constraint constraints.txt \
        --override uv-overrides.txt --requirement pyproject.toml \
        --extra cpu --extra transformers --extra openai --extra s3 --extra gcs


# The user, the folders that may be written, and the variables that name these folders.
FROM ${PYTHON_IMAGE} AS runtime
RUN groupadd --gid 10001 nightshift \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin nightshift \
    && install --directory --owner 10001 --group 10001 /cache /data /run/nightshift
COPY --from=build /usr/bin/tini-static /usr/local/bin/tini
# PYTHONSAFEPATH: without it, `python -m` would import modules in /data before our own.
ENV PATH=/opt/nightshift/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    HF_HOME=/cache/huggingface \
    NIGHTSHIFT_RUN_DIR=/run/nightshift
WORKDIR /data
STOPSIGNAL SIGTERM
EXPOSE 9464


FROM runtime AS control
ARG VERSION
ARG SOURCE=""
ARG REVISION=""
LABEL org.opencontainers.image.title="Nightshift control" \
    org.opencontainers.image.description="The nightshift command: submit, look, migrate, reaper, serve. No model library." \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.revision="${REVISION}"
COPY --from=control-packages /opt/nightshift /opt/nightshift
COPY --from=wheel /src/examples/reviews /usr/share/nightshift/examples/reviews
RUN --mount=type=bind,from=build,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    uv pip install --python /opt/nightshift --no-cache --no-deps --compile-bytecode /dist/*.whl
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=15s --start-period=60s --retries=3 \
    CMD ["nightshift", "alive"]
ENTRYPOINT ["tini", "--", "nightshift"]


FROM runtime AS worker-cpu
ARG VERSION
ARG SOURCE=""
ARG REVISION=""
LABEL org.opencontainers.image.title="Nightshift worker (CPU)" \
    org.opencontainers.image.description="The nightshift-worker command with vLLM, transformers and openai for machines without a GPU." \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.revision="${REVISION}"
# vLLM's kernels link libnuma. torch compiles C++ for a model that does not run eagerly.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 \
    && rm -rf /var/lib/apt/lists/*
# Compilers keep their results on the volume, and a later start reads them.
ENV VLLM_CACHE_ROOT=/cache/vllm \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton
COPY --from=worker-cpu-packages /opt/nightshift /opt/nightshift
RUN --mount=type=bind,from=build,source=/usr/local/bin/uv,target=/usr/local/bin/uv \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    uv pip install --python /opt/nightshift --no-cache --no-deps --compile-bytecode /dist/*.whl
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=15s --start-period=10m --retries=3 \
    CMD ["nightshift-worker", "alive"]
ENTRYPOINT ["tini", "--", "nightshift-worker"]


# The vLLM image has its own Python with CUDA builds of torch and vLLM. Our package is installed there.
FROM ${VLLM_IMAGE} AS worker-gpu
ARG VERSION
ARG VLLM_VERSION
ARG SOURCE=""
ARG REVISION=""
ARG UV_DEFAULT_INDEX
ARG UV_EXTRA_INDEX_URL
ARG UV_FIND_LINKS
ARG GPU_EXTRAS=openai,nvml,s3,gcs
# Packages of the image that may change, as name|name: kombu pins packaging to one version.
ARG GPU_MAY_CHANGE=packaging
LABEL org.opencontainers.image.title="Nightshift worker (GPU)" \
    org.opencontainers.image.description="The nightshift-worker command on the official vLLM image." \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.source="${SOURCE}" \
    org.opencontainers.image.revision="${REVISION}"
USER 0
SHELL ["/bin/bash", "-o", "errexit", "-o", "pipefail", "-c"]
RUN groupadd --gid 10001 nightshift \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin nightshift \
    && install --directory --owner 10001 --group 10001 /cache /data /run/nightshift
COPY --from=build /usr/bin/tini-static /usr/local/bin/tini
# Packages of the image are pinned at their versions, and our packages are added. A package that does
# not fit stops the build instead of changing torch or vLLM. A version that changed all the same stops
# the build, too.
RUN --mount=type=cache,target=/var/cache/uv \
    --mount=type=bind,from=build,source=/usr/local/bin/uv,target=/opt/uv \
    --mount=type=bind,from=build,source=/src/constraints.txt,target=/opt/constraints.txt \
    --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=tmpfs,target=/build \
    python=$(command -v python3); \
    wheel=$(echo /dist/*.whl); \
    /opt/uv pip list --python "$python" --format freeze \
        | grep --extended-regexp --invert-match "^(${GPU_MAY_CHANGE})==" | sort > /build/before; \
    grep --extended-regexp "^vllm==${VLLM_VERSION}(\+|$)" /build/before \
        || { echo "the image has no vLLM ${VLLM_VERSION}: see VLLM_VERSION and VLLM_IMAGE"; exit 1; }; \
    awk -F == '{ name = tolower($1); gsub(/[_.]+/, "-", name) } !seen[name]++' \
        /build/before /opt/constraints.txt > /build/constraints.txt; \
    UV_LINK_MODE=copy UV_CACHE_DIR=/var/cache/uv \
        /opt/uv pip install --python "$python" --break-system-packages \
        --compile-bytecode --constraint /build/constraints.txt "${wheel}[${GPU_EXTRAS}]"; \
    /opt/uv pip list --python "$python" --format freeze | sort > /build/after; \
    comm -23 /build/before /build/after > /build/changed; \
    diff /dev/null /build/changed
ENV PYTHONSAFEPATH=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    HF_HOME=/cache/huggingface \
    VLLM_CACHE_ROOT=/cache/vllm \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton \
    FLASHINFER_WORKSPACE_BASE=/cache/flashinfer \
    NIGHTSHIFT_RUN_DIR=/run/nightshift
WORKDIR /data
STOPSIGNAL SIGTERM
EXPOSE 9464
USER 10001:10001
HEALTHCHECK --interval=30s --timeout=15s --start-period=10m --retries=3 \
    CMD ["nightshift-worker", "alive"]
ENTRYPOINT ["tini", "--", "nightshift-worker"]
