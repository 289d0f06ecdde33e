// A hundred guesses as dots: right without the model, right with it at most, wrong. And a sentence that says so.
const hundred = root.querySelector(".hundred svg");
const dots = Array.from({ length: 100 }, (_, i) => {
  const dot = hundred.appendChild(document.createElementNS(hundred.namespaceURI, "circle"));
  [["cx", 5 + 10 * (i % 20)], ["cy", 8 + 16 * Math.floor(i / 20)], ["r", 3.6]].forEach((one) => dot.setAttribute(...one));
  return dot;
});
const ofHundred = (right) => Math.min(100, Math.ceil(100 * right - 1e-9));
// `limit` says whose limit it is: that of one training run, or of any mechanism with an ε.
function showGuesses(right, prior, who, limit) {
  const alone = Math.max(prior, 1 - prior), guessed = Math.round(100 * alone), lit = Math.max(guessed, ofHundred(right));
  dots.forEach((dot, i) => { dot.setAttribute("class", i < guessed ? "alone" : i < lit ? "learned" : "wrong"); });
  say("risk", `${who} a probability of ${short(100 * prior)} % guesses right at most ${lit} times in 100${limit}. Without the model it would be ${guessed}.`);
}

// The largest share of right guesses of one who gives one world this probability beforehand: with either world as that.
function rightAt(curve, prior) {
  const right = (p) => Math.max(...curve.map(([fpr, fnr]) => p * (1 - fnr) + (1 - p) * (1 - fpr)));
  return Math.max(right(prior), right(1 - prior));
}
