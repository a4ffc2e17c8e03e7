# The explorer: pages over the agent's API. It opens no ledger, so its user is in no group of theirs.
FROM python:3.11.15-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/kvledger
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY engine engine
COPY agent agent
COPY dashboards dashboards
COPY alerts alerts
RUN /opt/kvledger/bin/pip install --no-cache-dir -c constraints.txt '.[explorer]'

FROM python:3.11.15-slim-bookworm
RUN groupadd --gid 10003 explorer \
    && useradd --uid 10003 --gid 10003 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin explorer
COPY --from=build /opt/kvledger /opt/kvledger
ENV PATH=/opt/kvledger/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10003:10003
EXPOSE 8501
ENTRYPOINT ["kvledger"]
CMD ["explorer", "--host=0.0.0.0"]
