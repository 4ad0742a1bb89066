"""Moments: what people write after --since, and what records say."""

from __future__ import annotations

import re
import time

from exeat.errors import ConfigError

_AGO = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_DATE = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]{1,9})?)?(Z)?)?"
)
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EXPECTED = "10m, 2h, 3d, 14:30, 2025-01-31, 2025-01-31T14:30 or, in UTC, 2025-01-31T14:30:00Z"


def parse_since(text: str, now: float) -> float:
    """The unix time of WHEN. Times are local unless they end in Z. Raises ConfigError."""
    if ago := _AGO.fullmatch(text):
        return max(now - int(ago[1]) * _UNITS[ago[2]], 0.0)
    if clock := _CLOCK.fullmatch(text):
        moment = _clock_time(clock, now)
    elif date := _DATE.fullmatch(text):
        moment = _date_time(date)
    else:
        moment = None
    if moment is None:
        raise ConfigError(f"{text!r} is not a time", where="--since", expected=_EXPECTED)
    if moment > now:
        raise ConfigError(f"{text!r} is still to come", where="--since", expected="a time in the past")
    return moment


def utc_seconds(stamp: str) -> int | None:
    """The unix time of a record's stamp, in whole seconds; None if it is none. Loading datetime would cost 3 ms."""
    date = _DATE.fullmatch(stamp)
    if date is None or not date[7]:
        return None
    return _from_utc(*_numbers(date))


def _clock_time(clock: re.Match[str], now: float) -> float | None:
    hour, minute, second = (int(each or 0) for each in clock.groups())
    if hour > 23 or minute > 59 or second > 59:
        return None
    today = time.localtime(now)
    moment = time.mktime((today.tm_year, today.tm_mon, today.tm_mday, hour, minute, second, 0, 0, -1))
    if moment > now:  # 23:50, said at 00:10
        moment = time.mktime((today.tm_year, today.tm_mon, today.tm_mday - 1, hour, minute, second, 0, 0, -1))
    return moment


def _date_time(date: re.Match[str]) -> float | None:
    numbers = _numbers(date)
    utc = _from_utc(*numbers)
    if utc is None or date[7]:
        return utc
    try:
        return time.mktime((*numbers, 0, 0, -1))
    except (OverflowError, ValueError):
        return None


def _numbers(date: re.Match[str]) -> tuple[int, int, int, int, int, int]:
    year, month, day, hour, minute, second = (int(each or 0) for each in date.groups()[:6])
    return year, month, day, hour, minute, second


def _from_utc(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    """Days since 1970 by the civil calendar, in which the year begins in March and ends with the leap day."""
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if (
        year < 1970
        or not 1 <= month <= 12
        or not 1 <= day <= _DAYS[month - 1]
        or (month == 2 and day == 29 and not is_leap)
    ):
        return None
    if hour > 23 or minute > 59 or second > 60:
        return None
    shifted = year - (month <= 2)
    era_days = shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400
    days = era_days + (153 * ((month + 9) % 12) + 2) // 5 + day - 1 - 719468
    return days * 86400 + hour * 3600 + minute * 60 + second
