# The runbook's pages, to which alerts and boards link. It opens no ledger, so its user is in no group of theirs.
FROM python:3.11.15-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/kvledger
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY engine engine
COPY agent agent
COPY dashboards dashboards
COPY alerts alerts
RUN /opt/kvledger/bin/pip install --no-cache-dir -c constraints.txt '.[alerts]'

FROM python:3.11.15-slim-bookworm
RUN groupadd --gid 10004 runbook \
    && useradd --uid 10004 --gid 10004 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin runbook
COPY --from=build /opt/kvledger /opt/kvledger
ENV PATH=/opt/kvledger/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
USER 10004:10004
EXPOSE 9095
ENTRYPOINT ["kvledger"]
CMD ["runbook", "--host=0.0.0.0"]
