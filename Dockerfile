# An image for each process: docker build --target proxy --tag hearth-proxy . ; without --target it is
# the API's. Stages that end up in no image install and compile: no image has a compiler and torch but
# the API's, if it is asked for. Nothing is written below /hearth but var.

# Not empty: the API has torch with CUDA and what its kernels need, and serves on GPUs (docs/install.md).
ARG CUDA=

FROM python:3.11-slim-bookworm AS python
ENV PATH=/opt/hearth/bin:$PATH PYTHONPATH=/hearth
# The user by number in deploy/kubernetes, which cannot see who a name is. Volumes begin as these folders
# are, so with their owner.
RUN useradd --uid 1000 --create-home hearth \
 && install --directory --owner hearth --group hearth /hearth/var /home/hearth/.cache/huggingface \
 && chown hearth:hearth /home/hearth/.cache \
 && ln -s /hearth/scripts/hearth.py /usr/local/bin/hearth
WORKDIR /hearth

FROM python AS source
COPY . .
# Nobody may write there later, and each start would compile all modules again. A module that is
# mounted over one of these is still the one that runs.
RUN rm -r models var \
 && python -m compileall -q --invalidation-mode checked-hash .

FROM python AS core-packages
RUN python -m venv /opt/hearth
COPY requirements-core.txt ./
RUN pip install --no-cache-dir -r requirements-core.txt

FROM core-packages AS plan-packages
COPY requirements-plan.txt ./
RUN pip install --no-cache-dir -r requirements-plan.txt

FROM core-packages AS bench-packages
COPY requirements-bench.txt ./
RUN pip install --no-cache-dir -r requirements-bench.txt

FROM core-packages AS cluster-packages
COPY requirements-cluster.txt ./
RUN pip install --no-cache-dir -r requirements-cluster.txt

FROM plan-packages AS serve-packages
ARG CUDA
COPY requirements-serve.txt requirements-router.txt requirements-constraints.txt requirements-otel.txt \
     requirements-cuda.txt ./
RUN pip install --no-cache-dir -r requirements-serve.txt -r requirements-router.txt \
      -r requirements-constraints.txt -r requirements-otel.txt ${CUDA:+-r requirements-cuda.txt}

FROM core-packages AS kernels
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ \
 && rm -rf /var/lib/apt/lists/*
COPY common common
COPY inference_api inference_api
RUN python -m inference_api.kernels.build --beside

FROM python AS proxy
COPY --from=core-packages /opt/hearth /opt/hearth
COPY --from=source /hearth /hearth
USER 1000
ENV PROXY_HOST=0.0.0.0
EXPOSE 1223
HEALTHCHECK --interval=5s --timeout=5s --start-period=1m \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:1223/health')"]
CMD ["gunicorn", "--config", "proxy/gunicorn.conf.py"]

FROM python AS optimizer
COPY --from=plan-packages /opt/hearth /opt/hearth
COPY --from=source /hearth /hearth
USER 1000
ENV INFERNO_HOST=0.0.0.0
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=1m \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health')"]
CMD ["python", "-m", "optimizer"]

FROM python AS weights
COPY --from=plan-packages /opt/hearth /opt/hearth
COPY --from=source /hearth /hearth
USER 1000
ENV WEIGHTS_HOST=0.0.0.0
EXPOSE 8001
HEALTHCHECK --interval=5s --timeout=5s --start-period=1m \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8001/health')"]
CMD ["python", "-m", "weights"]

# docker run --rm --user "$(id -u)" --volume "$PWD:/hearth/var" hearth-benchmark http://server:8000/v1
FROM python AS benchmark
COPY --from=bench-packages /opt/hearth /opt/hearth
COPY --from=source /hearth /hearth
USER 1000
HEALTHCHECK NONE
ENTRYPOINT ["python", "-m", "benchmarking"]
CMD ["--help"]

# The controller: of Deployments, or of a Ray cluster.
FROM python AS cluster
COPY --from=cluster-packages /opt/hearth /opt/hearth
COPY --from=source /hearth /hearth
USER 1000
EXPOSE 3300
HEALTHCHECK --interval=5s --timeout=5s --start-period=1m \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:3300/health')"]
CMD ["python", "-m", "cluster", "/etc/hearth/cluster.yaml"]

FROM python AS api
ARG CUDA
# Triton compiles what launches its kernels, and keeps it.
ENV TRITON_CACHE_DIR=/hearth/var/triton
# hadolint ignore=DL3008
RUN if [ -n "$CUDA" ]; then \
      apt-get update \
   && apt-get install --yes --no-install-recommends gcc libc6-dev \
   && rm -rf /var/lib/apt/lists/*; \
    fi
COPY --from=serve-packages /opt/hearth /opt/hearth
COPY --from=source /hearth /hearth
COPY --from=kernels /hearth/inference_api/kernels/built inference_api/kernels/built
COPY models models
USER 1000
ENV SERVICE_HOST=0.0.0.0
EXPOSE 7000
HEALTHCHECK --interval=5s --timeout=5s --start-period=10m \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:7000/ready')"]
CMD ["gunicorn", "--config", "gunicorn.conf.py"]

# Nodes of deploy/kubernetes/ray, whose replicas are the API.
FROM api AS ray
USER 0
# wget: KubeRay's probes.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends wget \
 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir -r requirements-cluster.txt
USER 1000
HEALTHCHECK NONE
CMD ["ray", "--help"]

FROM api
