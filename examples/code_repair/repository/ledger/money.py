"""Amounts of money as whole cents."""


def to_cents(text):
    """Cents of an amount like "12", "12.3", "-0.05"; a third digit is rounded half up."""
    negative = text.startswith("-")
    whole, _, rest = text.lstrip("-").partition(".")
    digits = (rest + "000")[:3]
    cents = int(whole) * 100 + int(digits[:2])
    if int(digits[2]) >= 5:
        cents = cents + 1
    return -cents if negative else cents


def format_cents(cents):
    """The amount with two digits."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02}"


def split(cents, parts):
    """Parts that sum up to the amount, the larger ones first, and differ by a cent at most."""
    share = cents // parts
    extra = cents % parts
    return [share + 1 if k < extra else share for k in range(parts)]
