// Means over seeds, and a test for the difference of two means.

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// The standard deviation of a sample (divided by n - 1); 0 for a single value.
export function deviation(values) {
  if (values.length < 2) return 0;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

// Welch's t-test: the p-value of the difference of two means; null if a side has fewer than two values or nothing varies.
export function welch(first, second) {
  if (first.length < 2 || second.length < 2) return null;
  const [a, b] = [first, second].map((values) => deviation(values) ** 2 / values.length);
  if (a + b === 0) return null;
  const t = (mean(first) - mean(second)) / Math.sqrt(a + b);
  const freedom = (a + b) ** 2 / (a ** 2 / (first.length - 1) + b ** 2 / (second.length - 1));
  return incompleteBeta(freedom / (freedom + t * t), freedom / 2, 0.5);
}

// The regularised incomplete beta function by its continued fraction (Lentz's method).
function incompleteBeta(x, a, b) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x));
  // The fraction converges fast on one side of the mean; the other side is 1 minus it.
  return x < (a + 1) / (a + b + 2) ? (front * fraction(x, a, b)) / a : 1 - (front * fraction(1 - x, b, a)) / b;
}

function fraction(x, a, b) {
  const tiny = 1e-300;
  const away = (value) => (Math.abs(value) < tiny ? tiny : value);
  let c = 1;
  let d = 1 / away(1 - ((a + b) * x) / (a + 1));
  let result = d;
  for (let m = 1; m < 300; m += 1) {
    const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
    const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
    let factor = 1;
    for (const term of [even, odd]) {
      d = 1 / away(1 + term * d);
      c = away(1 + term / c);
      factor = c * d;
      result *= factor;
    }
    if (Math.abs(factor - 1) < 1e-14) break;
  }
  return result;
}

// Stirling's series, after the recurrence has made the argument large enough.
function logGamma(x) {
  let shift = 0;
  for (; x < 12; x += 1) shift -= Math.log(x);
  const inverse = 1 / (x * x);
  const series = (1 / 12 - inverse * (1 / 360 - inverse * (1 / 1260 - inverse / 1680))) / x;
  return shift + (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + series;
}
