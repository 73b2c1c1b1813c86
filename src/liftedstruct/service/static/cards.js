// Cards of items, and the sheet of one item. Names are untrusted and only set as text.

import * as api from "./api.js";

export function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content.filter((each) => each !== null && each !== undefined));
  return made;
}

export function button(className, label, run) {
  const made = element("button", className, label);
  made.type = "button";
  made.addEventListener("click", run);
  return made;
}

// Return a name in a bdi element, so that right-to-left text does not affect the text around it.
export function named(className, text) {
  const made = element("bdi", className);
  for (const part of text.match(/[^_/.-]+[_/.-]*|[_/.-]+/g) ?? []) made.append(part, document.createElement("wbr"));
  return made;
}

export function counted(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export function nearness(distance) {
  return distance === 0 ? "0" : distance < 0.001 || distance >= 100000 ? distance.toExponential(2) : distance.toPrecision(3);
}

// Return the image of an item, or a placeholder that says why there is none.
export function picture(item, size = 192, address = api.thumbnail(item.id, size)) {
  const frame = element("span", "picture");
  const missing = (text) => frame.replaceChildren(element("span", "missing", text));
  if (!item.has_image) {
    missing("no image file");
    return frame;
  }
  const image = element("img");
  Object.assign(image, { alt: "", loading: "lazy", decoding: "async", draggable: false });
  image.addEventListener("error", () => missing("image file not found"));
  image.src = address;
  frame.append(image);
  return frame;
}

// Return a bar of a distance, with a tick at the threshold.
function bar(distance, threshold, most) {
  const track = element("span", "track", element("span", "fill"));
  track.setAttribute("aria-hidden", "true");
  track.firstChild.style.width = `${Math.min(100, (100 * distance) / most)}%`;
  if (threshold !== null) {
    const tick = element("span", "tick");
    tick.style.insetInlineStart = `${Math.min(100, (100 * threshold) / most)}%`;
    track.append(tick);
  }
  return track;
}

// Return a card: {id, product, has_image, distance}; options are `threshold` and `most` of the bar of the distance, `note`
// (text or element), `actions` ([[label, function], ...]) and `onOpen`.
export function card(item, { threshold = null, most = 1, note = null, actions = [], onOpen } = {}) {
  const near = item.distance !== undefined && item.distance !== null;
  const kind = near && threshold !== null ? (item.distance <= threshold ? "right" : "beyond") : "";
  const title = item.product || item.id;
  const made = element("article", `card ${kind}`);
  made.dataset.id = item.id;
  const open = button("open", picture(item, 320), onOpen);
  open.setAttribute("aria-label", `Open ${title}`);
  const caption = named("id", item.id);
  caption.title = item.id;
  made.append(open, element("p", "name", named("product", item.product || "no product")), element("p", "name", caption));
  if (near) {
    const words = { right: "✓ match", beyond: "– no match" }[kind];
    const line = element("p", "near", element("span", "distance", `distance ${nearness(item.distance)}`));
    if (words) line.append(element("span", "said", words));
    made.append(line, bar(item.distance, threshold, most));
  }
  if (note) made.append(element("p", "note", note));
  if (actions.length) made.append(element("p", "actions", ...actions.map(([label, run]) => button("", label, run))));
  for (const each of made.querySelectorAll(".actions button")) each.setAttribute("aria-label", `${each.textContent}: ${title}`);
  return made;
}
