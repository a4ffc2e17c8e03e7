# The reference engine, with torch for the CPU. For an accelerator, build with the wheels that fit its driver:
# --build-arg TORCH_INDEX=...
FROM python:3.11.15-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
RUN python -m venv /opt/kvledger
COPY constraints.txt ./
# By itself and without what it needs, which is pinned too and comes with the rest: that index has other versions of it.
RUN /opt/kvledger/bin/pip install --no-cache-dir --no-deps --index-url "${TORCH_INDEX}" -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY agent agent
COPY dashboards dashboards
COPY alerts alerts
RUN /opt/kvledger/bin/pip install --no-cache-dir -c constraints.txt '.[engine]'
# For a processor of this kind; on another one the first start compiles again, into /tmp.
RUN /opt/kvledger/bin/python -m kvledger_engine.compiled

FROM python:3.11.15-slim-bookworm
# torch asks for the user's name, so the uid has to have one.
RUN groupadd --gid 10000 kvledger \
    && useradd --uid 10001 --gid 10000 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin engine
COPY --from=build /opt/kvledger /opt/kvledger
ENV PATH=/opt/kvledger/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10001:10000
EXPOSE 8000
ENTRYPOINT ["kvledger"]
CMD ["engine", "--host=0.0.0.0"]
