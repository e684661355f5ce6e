# One image for every process; docker-compose.yml and deploy/kubernetes say which of them a container
# runs. Nothing is written below /hearth but var, and that only by SQLite stores and BUNDLE.
FROM python:3.11-slim-bookworm

# wget: KubeRay's probes.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ make wget \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /hearth
COPY requirements.txt requirements-cluster.txt ./
RUN python -m pip install --no-cache-dir -r requirements.txt -r requirements-cluster.txt

COPY . .
RUN python -m pip install --no-cache-dir --no-deps --editable .
# By number in deploy/kubernetes, which cannot see who a name is.
RUN useradd --uid 1000 --create-home hearth && mkdir -p var && chown hearth var
USER hearth
RUN python -m inference_api.kernels.build

ENV SERVICE_HOST=0.0.0.0
EXPOSE 7000 1223
STOPSIGNAL SIGTERM
CMD ["gunicorn", "--config", "gunicorn.conf.py"]
