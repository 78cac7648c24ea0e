from ledger.report import balances, largest, totals, within

ENTRIES = [(1, "food", -500), (2, "pay", 900), (3, "food", -300), (5, "gift", 500), (6, "gift", -500)]


def test_totals():
    assert totals(ENTRIES)["food"] == -800


def test_totals_leave_out_nothing():
    assert totals(ENTRIES) == {"food": -800, "pay": 900}


def test_balances():
    assert balances(ENTRIES[:3], 100) == [-400, 500, 200]


def test_within_is_inclusive():
    assert [entry[0] for entry in within(ENTRIES, 2, 5)] == [2, 3, 5]


def test_within_nothing():
    assert within(ENTRIES, 7, 9) == []


def test_largest():
    assert [entry[0] for entry in largest(ENTRIES, 3)] == [2, 1, 5]
