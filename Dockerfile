# cpb of this clone as an image; docs/install.md#in-a-container has its sizes. With torch's CPU build:
#   docker build -t localhost/cpb-forecast .
# with a CUDA build, one of the table in docs/install.md:
#   docker build -t localhost/cpb-forecast --build-arg TORCH_BUILD=cu130 .
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG TORCH=2.13.0
ARG TORCH_BUILD=cpu
ARG TORCH_INDEX=https://download.pytorch.org/whl/${TORCH_BUILD}
RUN python3 -m venv /opt/cpb
# A layer of its own, which stays when the code changes: it is most of the image.
RUN /opt/cpb/bin/pip install --no-cache-dir --index-url ${TORCH_INDEX} torch==${TORCH}
COPY . /clone
RUN /opt/cpb/bin/pip install --no-cache-dir -c /clone/constraints.txt "/clone[postgres]"

FROM python:${PYTHON}-slim-bookworm
# Named volumes take over the owner of the folder that they are mounted on.
RUN useradd --create-home --uid 1000 cpb \
    && install -d -m 700 -o cpb -g cpb /data /store /prefect /home/cpb/.mlflow
COPY --from=build /opt/cpb /opt/cpb
ENV PATH=/opt/cpb/bin:$PATH \
    CPB_HOME=/data \
    MLFLOW_TRACKING_URI=sqlite:////store/mlflow.db \
    PREFECT_HOME=/prefect \
    CPB_DEPLOY_STATE=/prefect/cpb
USER cpb
WORKDIR /home/cpb
VOLUME ["/data", "/store"]
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz')"]
ENTRYPOINT ["cpb"]
CMD ["serve", "--host", "0.0.0.0"]
