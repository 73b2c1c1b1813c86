// The sheet of one item: its image, fields, nearest neighbors, and what can be done with it.

import { button, counted, element, named, nearness, picture } from "./cards.js";

const NEAREST = 6;

// Return whether an item's nearest neighbor has its product, as a kind and a sentence.
function outcome(item, matches) {
  if (!matches.length) return ["rest", "There is no other item to compare it with."];
  if (!item.product) return ["rest", "The item has no product to compare its neighbors with."];
  if (matches[0].product === item.product) return ["right", "✓ The nearest other item is of the same product."];
  const rank = matches.findIndex((match) => match.product === item.product);
  return ["wrong", `✗ The nearest other item is of another product${rank < 0 ? "" : `; the first of its own has rank ${rank + 1}`}.`];
}

export async function openSheet(dialog, app, id) {
  const title = element("h2", "", named("product", id));
  const close = button("close", "×", () => dialog.close());
  close.setAttribute("aria-label", "Close");
  const body = element("div", "details", element("p", "soft", "Loading …"));
  const frame = element("div", "large");
  dialog.replaceChildren(frame, element("div", "side", element("header", "", title, close), body));
  dialog.onclick = (event) => event.target === dialog && dialog.close(); // the backdrop
  if (!dialog.open) dialog.showModal();
  try {
    const item = await app.api.get(app.api.item(id));
    const answer = await app.api.get(app.api.neighbors(id), { k: NEAREST });
    if (!title.isConnected) return; // another item was opened meanwhile
    title.replaceChildren(named("product", item.product || "no product"));
    frame.append(picture(item, 0, app.api.image(id)));
    body.replaceChildren(...details(app, dialog, item, answer));
    app.say(`${item.product || "no product"}, ${item.id}`);
  } catch (error) {
    body.replaceChildren(element("p", "error", error.message));
  }
}

function details(app, dialog, item, answer) {
  const [kind, said] = outcome(item, answer.matches);
  const go = (hash) => () => {
    dialog.close();
    app.go(hash);
  };
  const copy = button("", "Copy id", async () => {
    await navigator.clipboard.writeText(item.id).then(() => (copy.textContent = "Copied"), (error) => app.fail(error));
  });
  const similar = button("primary", "Find similar", go(app.hash("find", { id: item.id })));
  const buttons = element("p", "buttons", similar, button("", "Show on map", go(app.hash("map", { id: item.id }))), copy);
  const fields = Object.entries({ id: item.id, path: item.path, ...item.metadata }).filter(([, value]) => value !== undefined);
  const list = element("dl", "", ...fields.map(([name, value]) => element("div", "", element("dt", "", named("", name)), element("dd", "", named("", String(value))))));
  const strip = element("ol", "strip", ...answer.matches.map((match) => {
    const right = match.product === item.product;
    const open = button(right ? "right" : "wrong", picture(match, 192), () => app.openItem(match.id));
    open.append(element("span", "", `${right ? "✓" : "✗"} ${nearness(match.distance)}`));
    open.setAttribute("aria-label", `${match.product || match.id}, ${right ? "same" : "another"} product, distance ${nearness(match.distance)}`);
    return element("li", "", open);
  }));
  const near = answer.matches.length ? [element("h3", "", `Its ${counted(answer.matches.length, "nearest item", "nearest items")}`), strip] : [];
  return [element("p", `outcome ${kind}`, said), buttons, list, ...near];
}
