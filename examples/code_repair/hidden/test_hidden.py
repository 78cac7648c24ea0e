from ledger.dates import add_months, days_in_month, is_leap
from ledger.money import format_cents, split, to_cents
from ledger.report import balances, largest, totals, within


def test_hidden_to_cents():
    assert [to_cents(t) for t in ("3.999", "-2.5", "0", "7.014", "7.015")] == [400, -250, 0, 701, 702]


def test_hidden_format_cents():
    assert [format_cents(c) for c in (99, 100, -250, 0)] == ["0.99", "1.00", "-2.50", "0.00"]


def test_hidden_split():
    assert split(100, 7) == [15, 15, 14, 14, 14, 14, 14]


def test_hidden_is_leap():
    assert [y for y in (1600, 1700, 2001, 2020, 2100) if is_leap(y)] == [1600, 2020]


def test_hidden_days_in_month():
    assert [days_in_month(2100, m) for m in (1, 2, 3, 12)] == [31, 28, 31, 31]


def test_hidden_add_months():
    assert add_months(2023, 12, 31, 2) == (2024, 2, 29)
    assert add_months(2023, 5, 31, -3) == (2023, 2, 28)


def test_hidden_totals():
    assert totals([(1, "a", 3), (2, "b", 4), (3, "a", -3)]) == {"b": 4}


def test_hidden_balances():
    assert balances([(1, "a", 3), (2, "b", -4)]) == [3, -1]


def test_hidden_within():
    assert within([(1, "a", 1), (4, "b", 1), (8, "c", 1)], 1, 4) == [(1, "a", 1), (4, "b", 1)]


def test_hidden_largest():
    assert largest([(9, "a", -5), (2, "b", 5), (3, "c", 1)], 2) == [(2, "b", 5), (9, "a", -5)]
