# The agent: reads ledgers and computes nothing, so there is no torch in it.
FROM python:3.11.15-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/kvledger
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY engine engine
COPY agent agent
COPY dashboards dashboards
COPY alerts alerts
RUN /opt/kvledger/bin/pip install --no-cache-dir -c constraints.txt '.[agent,otlp]'

FROM python:3.11.15-slim-bookworm
RUN groupadd --gid 10000 kvledger \
    && useradd --uid 10002 --gid 10000 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin agent
COPY --from=build /opt/kvledger /opt/kvledger
ENV PATH=/opt/kvledger/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10002:10000
EXPOSE 9470
ENTRYPOINT ["kvledger"]
CMD ["agent", "--host=0.0.0.0"]
