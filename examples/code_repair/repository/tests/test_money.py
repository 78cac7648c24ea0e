from ledger.money import format_cents, split, to_cents


def test_whole_amounts():
    assert to_cents("12") == 1200


def test_digits_after_the_point():
    assert to_cents("12.3") == 1230
    assert to_cents("0.05") == 5


def test_the_third_digit_is_rounded():
    assert to_cents("1.005") == 101
    assert to_cents("1.004") == 100


def test_negative_amounts():
    assert to_cents("-0.05") == -5


def test_format():
    assert format_cents(1205) == "12.05"


def test_format_of_nothing():
    assert format_cents(0) == "0.00"


def test_format_of_debts():
    assert format_cents(-7) == "-0.07"


def test_parts_sum_up():
    assert split(10, 3) == [4, 3, 3]


def test_equal_parts():
    assert split(9, 3) == [3, 3, 3]
