# One image for the API and the proxy; docker-compose.yml says which of them a container runs.
FROM python:3.11-slim-bookworm

RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ make \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /hearth
COPY requirements.txt .
RUN python -m pip install --no-cache-dir -r requirements.txt

COPY . .
RUN python -m pip install --no-cache-dir --no-deps --editable .
RUN useradd --create-home hearth && mkdir -p var && chown hearth var
USER hearth
RUN python -m inference_api.kernels.build

ENV SERVICE_HOST=0.0.0.0
EXPOSE 7000 1223
STOPSIGNAL SIGTERM
CMD ["gunicorn", "--config", "gunicorn.conf.py"]
