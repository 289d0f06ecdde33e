// The privacy loss of DP-SGD with Poisson sampling: that of one step, and its T-fold convolution by FFT. The loss is
// tilted exponentially, so that the far tail that decides about δ is computed to full precision.
const REACH = 12, TAIL = Math.log(1e13);
const softAdd = (a, b) => (a > b ? a + Math.log1p(Math.exp(b - a)) : b === -Infinity ? -Infinity : b + Math.log1p(Math.exp(a - b)));

// The losses log P/Q of one step and their log-probabilities under P, at evenly spaced outcomes.
// As in dpsub.accounting.dominating_pairs: "substitute", "remove" and "add".
function oneStep(direction, { sigma, q }, nodes = 2401) {
  const loss = new Float64Array(nodes), logMass = new Float64Array(nodes);
  const rest = Math.log1p(-q), width = 2 * (REACH * sigma + 1) / (nodes - 1);
  const shift = (x) => softAdd(Math.log(q) + (2 * x - 1) / (2 * sigma * sigma), rest);
  for (let i = 0; i < nodes; i++) {
    const x = (i - (nodes - 1) / 2) * width;
    const base = -x * x / (2 * sigma * sigma) + Math.log(width / sigma) - Math.log(2 * Math.PI) / 2;
    loss[i] = direction === "remove" ? shift(x) : direction === "add" ? -shift(-x) : shift(x) - shift(-x);
    logMass[i] = direction === "add" ? base : base + shift(x);
  }
  return { loss, logMass };
}

// log E[exp(tilt · loss)] of one step.
function logMoment({ loss, logMass }, tilt) {
  let top = -Infinity, sum = 0;
  for (let i = 0; i < loss.length; i++) top = Math.max(top, logMass[i] + tilt * loss[i]);
  for (let i = 0; i < loss.length; i++) sum += Math.exp(logMass[i] + tilt * loss[i] - top);
  return top + Math.log(sum);
}

// In place, of a power of two of complex numbers.
function fft(re, im, sign) {
  const n = re.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) { [re[i], re[j]] = [re[j], re[i]]; [im[i], im[j]] = [im[j], im[i]]; }
  }
  const cos = new Float64Array(n / 2), sin = new Float64Array(n / 2);
  for (let k = 0; k < n / 2; k++) { cos[k] = Math.cos(2 * Math.PI * k / n); sin[k] = sign * Math.sin(2 * Math.PI * k / n); }
  for (let half = 1; half < n; half *= 2) {
    const stride = n / (2 * half);
    for (let start = 0; start < n; start += 2 * half) {
      for (let k = 0; k < half; k++) {
        const c = cos[k * stride], s = sin[k * stride], a = start + k, b = a + half;
        const x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
        re[b] = re[a] - x; im[b] = im[a] - y; re[a] += x; im[a] += y;
      }
    }
  }
}

// The loss of all steps: `mass[j]` at `low + j·mesh`, each multiplied by exp(tilt · loss - scale).
function compose(direction, training, tilt, finest = Infinity) {
  const { steps } = training, step = oneStep(direction, training), moment = logMoment(step, tilt);
  const { loss, logMass } = steps < 30 ? oneStep(direction, training, 60001) : step; // few steps do not smooth their sum
  const tilted = logMass.map((log, i) => Math.exp(log + tilt * loss[i] - moment));
  const mean = tilted.reduce((sum, mass, i) => sum + mass * loss[i], 0);
  const deviation = Math.sqrt(steps * tilted.reduce((sum, mass, i) => sum + mass * (loss[i] - mean) ** 2, 0));
  let low = -Infinity, high = Infinity; // Chernoff: 1e-13 of the tilted mass lies beyond
  for (let power = -6; power <= 4; power++) {
    const s = 7 / deviation * 2 ** power;
    high = Math.min(high, (steps * (logMoment(step, tilt + s) - moment) + TAIL) / s);
    low = Math.max(low, -(steps * (logMoment(step, tilt - s) - moment) + TAIL) / s);
  }
  let size = 2 ** 13;
  while (size < 2 ** 16 && (high - low) / size > finest) size *= 2;
  const mesh = (high - low) / size, re = new Float64Array(size), im = new Float64Array(size);
  low = Math.floor(low / mesh) * mesh;
  const place = (cell) => ((cell % size) + size) % size;
  for (let i = 0; i < loss.length; i++) { // each outcome on four cells, with the same first three moments
    const cell = Math.floor(loss[i] / mesh), u = loss[i] / mesh - cell;
    re[place(cell - 1)] -= tilted[i] * u * (u - 1) * (u - 2) / 6;
    re[place(cell)] += tilted[i] * (u + 1) * (u - 1) * (u - 2) / 2;
    re[place(cell + 1)] -= tilted[i] * (u + 1) * u * (u - 2) / 2;
    re[place(cell + 2)] += tilted[i] * (u + 1) * u * (u - 1) / 6;
  }
  fft(re, im, -1);
  for (let k = 0; k < size; k++) {
    const length = Math.hypot(re[k], im[k]) ** steps, angle = steps * Math.atan2(im[k], re[k]);
    re[k] = length * Math.cos(angle); im[k] = length * Math.sin(angle);
  }
  fft(re, im, 1);
  const first = place(Math.round(low / mesh));
  const mass = Float64Array.from(re, (_, j) => re[(first + j) % size] / size);
  return { mass, low, mesh, scale: steps * moment };
}

// The smallest ε with δ(ε) ≤ delta, of one direction.
function epsilonOf(direction, training) {
  const { steps, delta } = training, step = oneStep(direction, training), wanted = Math.log(delta);
  const bound = (power) => (steps * logMoment(step, 2 ** power) - wanted) / 2 ** power; // Chernoff's
  let power = -14;
  while (power < 14 && bound(power + 1) < bound(power)) power++;
  let from = power - 1, to = power + 1;
  for (let i = 0; i < 16; i++) {
    const x = from + 0.382 * (to - from), y = to - 0.382 * (to - from);
    if (bound(x) < bound(y)) to = y; else from = x;
  }
  const tilt = 2 ** ((from + to) / 2);
  const { mass, low, mesh, scale } = compose(direction, training, tilt, bound(from) / 400);
  const centre = low + mesh * mass.length / 2; // sums of P and of e^ε Q above ε, over exp(scale - tilt · centre)
  const excess = (epsilon, p, q) => {
    const value = p - Math.exp(epsilon - centre) * q;
    return value <= 0 ? -Infinity : Math.log(value) + scale - tilt * centre - wanted;
  };
  let p = 0, q0 = 0;
  for (let j = mass.length - 1; j >= 0; j--) {
    const loss = low + j * mesh;
    if (excess(Math.max(loss, 0), p, q0) > 0) {
      let from = Math.max(loss, 0), to = loss + mesh;
      for (let i = 0; i < 50; i++) {
        const middle = (from + to) / 2;
        if (excess(middle, p, q0) > 0) from = middle; else to = middle;
      }
      return to;
    }
    if (loss < 0) return 0;
    p += mass[j] * Math.exp(Math.min(700, -tilt * (loss - centre)));
    q0 += mass[j] * Math.exp(Math.min(700, -(tilt + 1) * (loss - centre)));
  }
  return Math.max(0, low);
}

// Points [false-positive rate, false-negative rate] of the best attacks, from (0, 1) to (1, 0).
function tradeoff(adjacency, training) {
  const { mass, low, mesh } = compose(adjacency === "substitute" ? adjacency : "remove", training, 0);
  let found = [[0, 1]], fpr = 0, tpr = 0, last = 0;
  for (let j = mass.length - 1; j >= 0; j--) {
    tpr += mass[j];
    fpr += mass[j] * Math.exp(Math.min(700, -(low + j * mesh)));
    if (fpr > last + 2e-4 || tpr > 1 - found[found.length - 1][1] + 2e-3) { found.push([fpr, 1 - tpr]); last = fpr; }
  }
  found = found.concat([[1, 0]]).map(([x, y]) => [Math.min(1, x), Math.max(0, y)]);
  if (adjacency !== "substitute") found = found.concat(found.map(([x, y]) => [y, x])); // either direction
  const hull = [];
  for (const point of found.sort((a, b) => a[0] - b[0] || b[1] - a[1])) {
    const turns = ([a, b], [c, d]) => (c - a) * (point[1] - b) - (d - b) * (point[0] - a);
    while (hull.length > 1 && turns(hull[hull.length - 2], hull[hull.length - 1]) <= 0) hull.pop();
    hull.push(point);
  }
  return hull;
}

// The largest share of the models with z that an attack finds at a false-positive rate.
function foundAt(curve, rate) {
  const after = curve.findIndex(([x]) => x >= rate), [[a, b], [c, d]] = [curve[Math.max(after - 1, 0)], curve[after]];
  return 1 - (c > a ? b + (d - b) * (rate - a) / (c - a) : d);
}
