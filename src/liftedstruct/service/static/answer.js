// What an answer says, in sentences.

import { counted, element, named, nearness } from "./cards.js";

// Return the verdict on the nearest image, as text and elements.
function verdictOf({ address, calibration }, { matches: [first], margin, verdict, threshold }) {
  const distance = `at distance ${nearness(first.distance)}`;
  const none = "No other product is among the nearest images.";
  const next = margin === null ? none : `The next other product is ${nearness(margin)} farther.`;
  if (!verdict) {
    const command = element("code", "", `liftedstruct catalog calibrate ${address}`);
    return [`The nearest image is ${distance}. ${next} To know whether that is a match, run `, command, "."];
  }
  const rate = `${+(100 * (calibration?.requested ?? 0)).toPrecision(3)}\u00a0%`;
  const limit = `the threshold of ${nearness(threshold)}, calibrated for a false-match rate of ${rate}. ${next}`;
  if (verdict === "match") return [`The nearest image is ${distance}, within ${limit}`];
  return ["The nearest image, of ", element("bdi", "", first.product || first.id), `, is ${distance}, beyond ${limit}`];
}

// Return what screen readers are told, and the elements above the cards.
export function answerOf(status, answer, filtered) {
  const { matches, verdict, milliseconds } = answer;
  if (!matches.length) {
    const text = filtered ? "The filter selects no other item." : "There is no other item in the catalog.";
    return [text, element("h2", "", "Nothing to compare with"), element("p", "soft", text)];
  }
  const [{ product, id, distance }] = matches;
  const title = element("h2", "", verdict === "no match" ? "No match" : named("", product || id));
  if (verdict === "match") title.append(element("span", "badge", "✓ match"));
  const count = counted(matches.length, "answer", "answers");
  const said = `${title.textContent}: ${count}, the nearest at distance ${nearness(distance)}`;
  const { model, items } = status;
  const basis = [`Nearest by Euclidean distance in the ${model.dim}-d embedding of the model `, element("bdi", "", model.name)];
  const time = `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms`;
  const why = element("p", "why", ...basis, `; exact search of ${counted(items, "item", "items")}, ${time}.`);
  return [said, title, element("p", "verdict", ...verdictOf(status, answer)), why];
}
