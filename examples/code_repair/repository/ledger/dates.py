"""Days and months."""

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def is_leap(year):
    """Whether a year has a 29th of February."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year, month):
    """Days of a month, 1 to 12."""
    extra = 1 if month == 2 and is_leap(year) else 0
    return LENGTHS[month - 1] + extra


def add_months(year, month, day, count):
    """The same day so many months later, or the last day of that month if it is shorter."""
    months = month - 1 + count
    year = year + months // 12
    month = months % 12 + 1
    return year, month, min(day, days_in_month(year, month))
