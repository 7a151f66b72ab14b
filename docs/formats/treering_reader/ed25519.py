"""Ed25519 verification in plain Python: slow, and never to be used with a secret.

The check is that R is, byte for byte, the encoding of [s]B - [h]A with h reduced modulo L: without cofactor, so that a
point of small order in R or A is multiplied as it is and every verifier comes to the same answer.

Source: RFC 8032, sections 5.1 and 6; what it leaves open is said in ``checkpoint.md``, *Signatures*.
"""

from __future__ import annotations

import hashlib

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, P) % P
_ROOT_OF_MINUS_1 = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]  # x = X/Z, y = Y/Z, xy = T/Z


def verified(key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the 64 bytes are the signature of the message by the 32 bytes of a key."""
    point, s = decoded(key), int.from_bytes(signature[32:], "little")
    if point is None or s >= L:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    x, y, z, t = point
    return encoded(added(times(s, BASE), times(h, (-x % P, y, z, -t % P)))) == signature[:32]


def of_small_order(point: Point) -> bool:
    """Whether eight times the point is the neutral element: under such a key anybody can sign."""
    return encoded(times(8, point)) == encoded(_NEUTRAL)


def decoded(data: bytes) -> Point | None:
    """The point of an encoding, None where it is none or not the canonical one."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if y >= P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * _ROOT_OF_MINUS_1 % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    x = x if x & 1 == sign else P - x
    return x, y, 1, x * y % P


def encoded(point: Point) -> bytes:
    inverse = pow(point[2], -1, P)
    x, y = point[0] * inverse % P, point[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def added(first: Point, second: Point) -> Point:
    a = (first[1] - first[0]) * (second[1] - second[0]) % P
    b = (first[1] + first[0]) * (second[1] + second[0]) % P
    c = 2 * first[3] * second[3] * _D % P
    d = 2 * first[2] * second[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(factor: int, point: Point) -> Point:
    total = _NEUTRAL
    while factor:
        if factor & 1:
            total = added(total, point)
        point = added(point, point)
        factor >>= 1
    return total


def _base() -> Point:
    found = decoded((4 * pow(5, -1, P) % P).to_bytes(32, "little"))
    assert found is not None
    return found


_NEUTRAL: Point = (0, 1, 1, 0)
BASE = _base()
