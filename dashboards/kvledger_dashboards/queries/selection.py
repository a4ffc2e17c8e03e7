"""What queries are made of: selectors that the catalogue knows, rates, quantiles and ratios. Knows no subject."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.catalog import BY_NAME
from kvledger.families.family import Kind, Scope

AGENT_SELECTOR = 'job=~"$job",instance=~"$instance"'
ENGINE_SELECTOR = f'{AGENT_SELECTOR},engine=~"$engine",model=~"$model"'
WINDOW = "[$__rate_interval]"
CORE = "instance, engine, rank"
"""What tells one engine core from another: two hosts may each have an engine of one name, and an agent of their own."""
CORE_LEGEND = "{{engine}}/{{rank}} {{instance}}"
TOP = 10
"""How many tenants a panel shows."""


class UnknownSeries(LookupError):
    """A query names a family or a label that the catalogue does not have."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query: PromQL with Grafana's variables in it, and the name of each of its series.

    `instant` asks for now; `table` for rows whose columns are the labels and `Value`, which has no legend.
    """

    expr: str
    legend: str
    instant: bool = False
    table: bool = False


def now(expr: str, legend: str) -> Query:
    """A query of now."""
    return Query(expr, legend, instant=True)


def rows(expr: str) -> Query:
    """A query of now whose answer is a table."""
    return Query(expr, "", instant=True, table=True)


def select(name: str, suffix: str = "", /, **labels: str | tuple[str, ...]) -> str:
    """The selector of a family, narrowed to what the reader chose, and to `labels`.

    `suffix` is `_bucket`, `_sum` or `_count` of a histogram; several values of a label are alternatives. Raises
    UnknownSeries for a name, a label or a value that the catalogue does not have.
    """
    if name not in BY_NAME:
        raise UnknownSeries(f"{name!r} is not in kvledger.catalog; use a family's name without its prefix")
    family = BY_NAME[name]
    if unknown := labels.keys() - set(family.label_names):
        raise UnknownSeries(f"{name} has no label {sorted(unknown)}; it has {family.label_names}")
    for label in family.labels:
        wanted = labels.get(label.name, ())
        if label.values is not None and (strange := set(_several(wanted)) - set(label.values)):
            raise UnknownSeries(f"{name} has no {label.name} {sorted(strange)}; it has {label.values}")
    chosen = AGENT_SELECTOR if family.scope is Scope.AGENT else ENGINE_SELECTOR
    matchers = ",".join([chosen, *(_matcher(label, value) for label, value in labels.items())])
    return f"{family.exposed_name}{suffix}{{{matchers}}}"


def _several(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _matcher(label: str, value: str | tuple[str, ...]) -> str:
    return f'{label}="{value}"' if isinstance(value, str) else f'{label}=~"{"|".join(value)}"'


def added(name: str, by: str = "", **labels: str | tuple[str, ...]) -> str:
    """A gauge, added up by the labels in `by`."""
    return f"sum{_by(by)}({select(name, **labels)})"


def per_second(name: str, by: str = "", **labels: str | tuple[str, ...]) -> str:
    """A counter's, or a histogram's sum's, rate, added up by the labels in `by`."""
    suffix = "_sum" if BY_NAME[name].kind is Kind.HISTOGRAM else ""
    return f"sum{_by(by)}(rate({select(name, suffix, **labels)}{WINDOW}))"


def ratio(part: str, whole: str) -> str:
    """`part` over `whole`; absent where the whole is nothing."""
    return f"{part} / ({whole} > 0)"


def quantile(percent: int, histogram: str, by: str = "", **labels: str) -> str:
    """A percentile of a histogram over all series with the same labels in `by`; absent where nothing was observed."""
    kept = f"le, {by}" if by else "le"
    rates = f"sum by ({kept}) (rate({select(histogram, '_bucket', **labels)}{WINDOW}))"
    return f"histogram_quantile({percent / 100}, {rates}) >= 0"


def percentiles(histogram: str, *percents: int) -> tuple[Query, ...]:
    """A query for each percentile of a histogram, named `P50` and so on."""
    return tuple(Query(quantile(percent, histogram), f"P{percent}") for percent in percents)


def top(expr: str) -> str:
    """The series with the greatest values at each moment."""
    return f"topk({TOP}, {expr})"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
