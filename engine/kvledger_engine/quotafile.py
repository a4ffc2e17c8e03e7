"""The tenants file: TOML in, `Quotas` out. Owns its keys and the place a fault is at; no default and no limit."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from kvledger.words import RequestClass
from kvledger_engine.admission import is_tenant_name
from kvledger_engine.errors import BadQuotas
from kvledger_engine.quotas import CLASS_DEFAULTS, DEFAULT, ClassPolicy, Quotas, TenantQuota

Row = TypeVar("Row", TenantQuota, ClassPolicy)
_TENANTS, _CLASSES = "tenants", "classes"


def read_quotas(path: Path) -> Quotas:
    """The quotas of a tenants file. Raises `BadQuotas`, which names the file, the table and the value."""
    try:
        text = path.read_text()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise BadQuotas(f"tenants={path}: {reason}; name a TOML file with tables [tenants.NAME]") from None
    try:
        return parse_quotas(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, BadQuotas) as error:
        raise BadQuotas(f"tenants={path}: {error}") from None


def parse_quotas(document: Mapping[str, Any]) -> Quotas:
    """The quotas of a document with tables `tenants`, `default` and `classes`. Raises `BadQuotas`."""
    _known(document, (_TENANTS, DEFAULT, _CLASSES), "the file")
    tenants = _tables(document, _TENANTS)
    for name in tenants:
        if not is_tenant_name(name):
            raise BadQuotas(f"tenant {name!r}: use a name of 1 to 64 bytes that can be printed")
    classes = _tables(document, _CLASSES)
    _known(classes, RequestClass.words(), f"[{_CLASSES}]")
    return Quotas(
        tenants={name: _row(f"tenant {name!r}", TenantQuota(), row) for name, row in tenants.items()},
        default=_row(DEFAULT, TenantQuota(), _table(document, DEFAULT, f"[{DEFAULT}]")),
        classes={
            name: _row(f"class {name!r}", policy, _table(classes, name, f"[{_CLASSES}.{name}]"))
            for name, policy in CLASS_DEFAULTS.items()
        },
    )


def _tables(document: Mapping[str, Any], name: str) -> Mapping[str, Mapping[str, Any]]:
    tables = _table(document, name, f"[{name}]")
    return {key: _table(tables, key, f"[{name}.{key}]") for key in tables}


def _table(document: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, Mapping):
        raise BadQuotas(f"{where} is {found!r}: make it a table")
    return found


def _row(where: str, base: Row, values: Mapping[str, Any]) -> Row:
    """`base` with some of its values replaced."""
    names = [field.name for field in fields(base)]
    _known(values, names, where)
    try:
        return type(base)(**({name: getattr(base, name) for name in names} | dict(values)))
    except BadQuotas as error:
        raise BadQuotas(f"{where}: {error}") from None


def _known(values: Mapping[str, Any], names: tuple[str, ...] | list[str], where: str) -> None:
    for key in values:
        if key not in names:
            near = get_close_matches(key, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise BadQuotas(f"{where}: unknown key {key!r}: {hint}")
