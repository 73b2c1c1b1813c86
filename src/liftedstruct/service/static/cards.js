// Cards of items. Names are untrusted and only set as text.

import * as api from "./api.js";
import { counted, element, named, nearness } from "./map/map_panel.js";

export { counted, element, named, nearness };

// Return an element with properties, such as listeners, and a label for screen readers.
export function control(tag, { label, ...properties }, ...content) {
  const made = Object.assign(element(tag, "", ...content), properties);
  if (label) made.setAttribute("aria-label", label);
  return made;
}

export function button(className, text, onclick, label) {
  return control("button", { type: "button", className, onclick, label }, text);
}

// Return the image of an item, or a placeholder that says why there is none.
export function picture(item, size = 192, address = api.thumbnail(item.id, size)) {
  const frame = element("span", "picture");
  const missing = (text) => frame.replaceChildren(element("span", "missing", text));
  const onerror = () => missing("image cannot be read");
  if (item.has_image) frame.append(control("img", { alt: "", loading: "lazy", draggable: false, onerror, src: address }));
  else missing("no image file");
  return frame;
}

// Return a bar of a distance, with a tick at the threshold.
function bar(distance, threshold, most) {
  const percent = (value) => `${Math.min(100, (100 * value) / most)}%`;
  const track = element("span", "track", element("span", "fill"));
  track.firstChild.style.width = percent(distance);
  if (threshold === null) return track;
  track.append(element("span", "tick"));
  track.lastChild.style.insetInlineStart = percent(threshold);
  return track;
}

// Return a card of {id, product, has_image, distance}. Options are `threshold` and `most`, the end of the bar of the distance;
// `note`, a text or an element; `actions`, [[label, function], ...]; and `onOpen`.
export function card(item, { threshold = null, most = 1, note = null, actions = [], onOpen } = {}) {
  const near = Number.isFinite(item.distance);
  const kind = near && threshold !== null ? (item.distance <= threshold ? "right" : "beyond") : "";
  const title = item.product || item.id;
  const open = button("open", picture(item, 320), onOpen, `Open ${title}`);
  const names = [["product", item.product || "no product"], ["id", item.id]].map(([className, text]) => {
    return control("p", { className: "name", title: text }, element("bdi", className, text));
  });
  const made = element("article", `card ${kind}`, open, ...names);
  made.dataset.id = item.id;
  if (near) {
    const said = element("span", "said", { right: "✓ match", beyond: "– no match" }[kind] ?? "");
    const distance = element("span", "", element("span", "unseen", "distance "), nearness(item.distance));
    made.append(bar(item.distance, threshold, most), element("p", "near", distance, said));
  }
  if (note) made.append(element("p", "note", note));
  const buttons = actions.map(([label, run]) => button("", label, run, `${label}: ${title}`));
  if (buttons.length) made.append(element("p", "actions", ...buttons));
  return made;
}
