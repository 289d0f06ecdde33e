// The normal distribution and Gaussian DP, as in dpsub.accounting.gaussian.
// The tail beyond x over the density at x, for x ≥ 0.
function mills(x) {
  if (x < 3) {
    let term = x, sum = 0;
    for (let k = 1; term > 1e-17 * sum; k++) { sum += term; term *= x * x / (2 * k + 1); }
    return Math.sqrt(Math.PI / 2) * Math.exp(x * x / 2) - sum;
  }
  let tail = x;
  for (let k = 60; k > 0; k--) tail = x + k / tail;
  return 1 / tail;
}
const density = (x) => Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI);
const ndtr = (x) => (x < 0 ? density(x) * mills(-x) : 1 - density(x) * mills(x));

// Where an increasing function becomes positive.
function zero(f, low, high) {
  for (let i = 0; i < 100; i++) {
    const middle = (low + high) / 2;
    if (f(middle) > 0) high = middle; else low = middle;
  }
  return (low + high) / 2;
}
const ndtri = (p) => (p > 0.5 ? -ndtri(1 - p) : zero((x) => ndtr(x) - p, -40, 0));

function logGdpDelta(mu, epsilon) {
  const low = epsilon / mu - mu / 2;
  if (low < 0) return Math.log(ndtr(-low) - density(low) * mills(low + mu));
  return Math.log(mills(low) - mills(low + mu)) - low * low / 2 - Math.log(2 * Math.PI) / 2;
}
function gdpEpsilon(mu, delta) {
  if (mu <= 0 || logGdpDelta(mu, 0) <= Math.log(delta)) return 0;
  return zero((epsilon) => Math.log(delta) - logGdpDelta(mu, epsilon), 0, mu * (mu / 2 - ndtri(delta)));
}
const gdpMu = (epsilon, delta) => zero((mu) => logGdpDelta(mu, epsilon) - Math.log(delta), 1e-6, 2 + 2 * Math.sqrt(2 * epsilon) - 2 * ndtri(delta));
