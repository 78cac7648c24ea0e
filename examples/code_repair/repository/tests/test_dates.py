from ledger.dates import add_months, days_in_month, is_leap


def test_leap_years():
    assert is_leap(2024)
    assert not is_leap(2023)


def test_centuries():
    assert not is_leap(1900)
    assert is_leap(2000)


def test_february():
    assert days_in_month(2024, 2) == 29
    assert days_in_month(2023, 2) == 28


def test_other_months():
    assert days_in_month(2024, 1) == 31
    assert days_in_month(2024, 4) == 30


def test_a_month_later():
    assert add_months(2023, 3, 15, 1) == (2023, 4, 15)


def test_over_the_year():
    assert add_months(2023, 11, 15, 3) == (2024, 2, 15)


def test_shorter_months():
    assert add_months(2023, 1, 31, 1) == (2023, 2, 28)
