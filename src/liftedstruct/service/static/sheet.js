// The sheet of one item: its image, fields, nearest neighbors, and what can be done with it.

import { button, counted, element, named, nearness, picture } from "./cards.js";

const NEAREST = 6;
const SAID = { right: ["✓ ", ", same product"], wrong: ["✗ ", ", another product"], rest: ["", ""] };

// Return whether an item's nearest neighbor is of its product, as a kind and a sentence.
function outcome(product, matches) {
  if (!matches.length) return ["rest", "There is no other item to compare it with."];
  if (!product) return ["rest", "The item has no product to compare its neighbors with."];
  if (matches[0].product === product) return ["right", "✓ The nearest other item is of the same product."];
  return ["wrong", "✗ The nearest other item is of another product."];
}

export async function openSheet(dialog, app, id) {
  const title = element("h2", "", named("product", id));
  const status = element("p", "unseen", "Loading …");
  status.setAttribute("role", "status");
  const body = element("div", "details", element("p", "soft", "Loading …"));
  const frame = element("div", "large");
  const close = button("close", "×", () => dialog.close(), "Close");
  dialog.replaceChildren(frame, element("div", "side", element("header", "", title, close), status, body));
  dialog.onclick = (event) => event.target === dialog && dialog.close(); // the backdrop
  dialog.ariaLabel = "Item";
  if (dialog.open) close.focus(); // what had the focus is gone
  else dialog.showModal();
  try {
    const near = app.api.get(app.api.neighbors(id), { k: NEAREST });
    const [item, { matches }] = await Promise.all([app.api.get(app.api.item(id)), near]);
    if (!title.isConnected) return; // another item was opened meanwhile
    dialog.ariaLabel = item.product || id;
    status.textContent = `Loaded: ${item.product || "no product"}, ${id}`;
    title.replaceChildren(named("product", item.product || "no product"));
    frame.append(picture(item, 0, app.api.image(id)));
    body.replaceChildren(...details(app, item, matches));
  } catch (error) {
    status.textContent = error.message;
    body.replaceChildren(element("p", "error", error.message));
  }
}

function details(app, item, matches) {
  const [kind, said] = outcome(item.product, matches);
  const leave = (tab) => () => app.go(app.hash(tab, { id: item.id }));
  const copied = (said) => () => (copy.textContent = said);
  const copy = button("", "Copy id", () => navigator.clipboard.writeText(item.id).then(copied("Copied"), copied("Not allowed")));
  const buttons = [button("primary", "Find similar", leave("find")), button("", "Show on map", leave("map")), copy];
  const fields = Object.entries({ id: item.id, ...item.metadata }).filter(([, value]) => value !== "");
  const list = fields.map(([name, value]) => {
    return element("div", "", element("dt", "", named("", name)), element("dd", "", named("", String(value))));
  });
  const strip = matches.map((match) => {
    const found = item.product ? (match.product === item.product ? "right" : "wrong") : "rest";
    const [sign, words] = SAID[found];
    const label = `${match.product || match.id}${words}, distance ${nearness(match.distance)}`;
    const open = button(found, picture(match), () => app.openItem(match.id), label);
    open.append(element("span", "", sign + nearness(match.distance)));
    return element("li", "", open);
  });
  const heading = element("h3", "", `Its ${counted(matches.length, "nearest item", "nearest items")}`);
  const near = matches.length ? [heading, element("ol", "strip", ...strip)] : [];
  return [element("p", `outcome ${kind}`, said), element("p", "buttons", ...buttons), element("dl", "", ...list), ...near];
}
