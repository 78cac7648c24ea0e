"""Sums over entries, each a (day, category, cents)."""


def totals(entries):
    """Cents by category; categories that come to nothing are left out."""
    found = {}
    for _, category, cents in entries:
        found[category] = found.get(category, 0) + cents
    return {category: cents for category, cents in found.items() if cents != 0}


def balances(entries, start=0):
    """The balance after each entry."""
    result = []
    for _, _, cents in entries:
        start = start + cents
        result.append(start)
    return result


def within(entries, first, last):
    """Entries from the first day to the last, both included."""
    return [entry for entry in entries if entry[0] >= first and entry[0] <= last]


def largest(entries, count):
    """The entries with the largest amounts, the sign not counted; earlier days first among equals."""
    ranked = sorted(entries, key=lambda entry: (-abs(entry[2]), entry[0]))
    return ranked[:count]
