"""The report of who has used the GPUs: the period that is asked for, the view, the answer. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone

from jupyter_gpu.core.errors import RequestError
from jupyter_gpu.core.grants import Log, Use
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.quantities import in_words, parse_seconds
from jupyter_gpu.core.refusal import since_in_words
from jupyter_gpu.core.view import Column, Table, View

USUAL_PERIOD = "7d"
_ACCEPTED = 'a time such as "7d" or "36h", or a day such as 2026-11-01'
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PROBLEMS_SHOWN = 5
_DIGITS = 4
_COLUMNS = (
    Column("User"),
    Column("Leases", right=True),
    Column("Device-hours", right=True),
    Column("Held now", right=True),
    Column("Last grant"),
)


@dataclass(frozen=True, slots=True)
class Report:
    """What was used in a period, by everybody or by the one user who was asked for.

    ``problem`` says why it is not known which leases go on; ``advice`` what makes a better log.
    """

    since: datetime
    until: datetime
    uses: tuple[Use, ...]
    log: Log
    user: str | None = None
    problem: str | None = None
    advice: str | None = None


def parse_since(given: str, now: datetime) -> datetime:
    """Return the beginning of a period: so long before the present, or the start of a day.

    A day comes back without a time zone, in which the caller knows best when it began.

    Raises
    ------
    RequestError
        When it is neither, or has not come yet.
    """
    text = given.strip()
    if _DAY.fullmatch(text) is None:
        return _before(given, text, now)
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise RequestError("since", given, _ACCEPTED) from None
    if day > now.date():
        raise RequestError("since", given, f"in the past; today is {now:%Y-%m-%d}")
    return datetime(day.year, day.month, day.day)  # noqa: DTZ001 - see above


def _before(given: str, text: str, now: datetime) -> datetime:
    if text.replace(".", "").isdigit():  # of what? Seconds are hardly meant
        raise RequestError("since", given, _ACCEPTED)
    try:
        ago = timedelta(seconds=parse_seconds("since", text))
        return now - ago
    except (RequestError, OverflowError):
        raise RequestError("since", given, _ACCEPTED) from None


def by_user(uses: Iterable[Use], name: str | None) -> tuple[Use, ...]:
    """Return what a user has used, named as the system names them or by the number."""
    return tuple(use for use in uses if name is None or name in (use.user, str(use.uid)))


def report_answer(report: Report) -> dict[str, object]:
    """Return the report for programs."""
    return {
        "schema": 1,
        "since": _utc(report.since),
        "until": _utc(report.until),
        "users": [
            {
                "user": use.user,
                "uid": use.uid,
                "leases": use.leases,
                "device_hours": round(use.device_hours, _DIGITS),
                "open": use.open,
                "open_device_hours": round(use.open_device_hours, _DIGITS),
                "estimated": use.estimated,
                "last_grant": _utc(use.last_grant),
            }
            for use in report.uses
        ],
        "log": report.log.directory,
        "notes": list(_notes(report)),
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="seconds")


def report_view(report: Report) -> View:
    """Return the report for people; times are shown in the time zone of ``until``."""
    since = since_in_words(report.since.isoformat(), report.until)
    uses = report.uses
    if uses:
        hours = _hours(sum(use.device_hours for use in uses), any(use.estimated for use in uses))
        who = uses[0].user if len(uses) == 1 else in_words(len(uses), "user")
        title = f"{hours} device-hours by {who} since {since}"
    elif report.user is not None:
        title = f"No lease of {clean(report.user)} has been noted since {since}"
    else:
        title = f"No lease has been noted since {since}"
    rows = tuple(_row(use, report.until) for use in uses)
    tables = (Table("Users", _COLUMNS, rows, headed=True),) if rows else ()
    return View(title, tables=tables, lines=_lines(report), notes=_notes(report))


def _row(use: Use, now: datetime) -> tuple[str, ...]:
    held = ""
    if use.open:
        held = f"{_hours(use.open_device_hours)} h, {in_words(use.open, 'lease')}"
    return (
        clean(use.user),
        str(use.leases),
        _hours(use.device_hours, bool(use.estimated)),
        held,
        since_in_words(use.last_grant.isoformat(), now),
    )


def _hours(number: float, about: bool = False) -> str:
    return f"{'≈ ' if about else ''}{number:.1f}"


def _lines(report: Report) -> tuple[str, ...]:
    lines = []
    estimated = sum(use.estimated for use in report.uses)
    if estimated:
        many = estimated > 1
        lines.append(
            f"≈: {in_words(estimated, 'lease')} {'were' if many else 'was'} found ended, and "
            f"{'count' if many else 'counts'} up to the last sign of life: an estimate."
        )
    if report.uses:
        lines.append("A share counts as the part of a device that it is.")
    if report.log.exists:
        lines.append(
            f"The log is in {report.log.directory}: what cooperating programs have written there."
        )
    return tuple(lines)


def _notes(report: Report) -> tuple[str, ...]:
    problems = report.log.problems
    notes = [clean(problem) for problem in problems[:_PROBLEMS_SHOWN]]
    if len(problems) > _PROBLEMS_SHOWN:
        notes.append(f"{in_words(len(problems) - _PROBLEMS_SHOWN, 'more file')} do not count.")
    if not report.log.exists:
        notes.append(f"There is no log yet: {report.log.directory} does not exist.")
    if report.problem is not None:
        notes.append(f"Which leases go on is not known. {report.problem}")
    if report.advice is not None:
        notes.append(report.advice)
    return tuple(notes)
