// The tab Review: ranked lists of what is likely wrong, with evidence, and decisions by key, button or touch.

import { button, control, counted, element, nearness, picture } from "./cards.js";

const PAGE = 60; // suggestions that are loaded at once
const WAIT = 700; // milliseconds between questions for the progress
const PAIRED = ["one", "two"]; // lists about classes
const EXPLAINED = {
  labels: "Images that look like another product than their label says.",
  duplicates: "Pairs of images with nearly the same pixels.",
  one: "Two products whose images are mixed.",
  two: "A product whose images fall into two groups.",
  outliers: "Images that are like nothing else in the catalog.",
  leaks: "Training images with a near duplicate in the test part.",
};
const DONE = { keep: "kept", relabel: "relabeled", drop: "dropped", merge: "merged" };
const KEYS = {
  j: "next", ArrowDown: "next", ArrowRight: "next", k: "previous", ArrowUp: "previous", ArrowLeft: "previous", a: "accept",
  Enter: "accept", r: "relabel", m: "merge", d: "drop", x: "keep", s: "keep", u: "undo",
};
const CONTROLS = "input, select, textarea, [contenteditable]";

export function mount(root, app) {
  return new Review(root, app);
}

const product = (item) => item.product || "no product";
const pill = (count) => element("span", "pill", count.toLocaleString("en"));

class Review {
  constructor(root, app) {
    Object.assign(this, { root, app, kinds: [], kind: null, items: [], total: 0, at: 0, shown: false, timer: null, asked: 0 });
    document.head.append(control("link", { rel: "stylesheet", href: "static/review.css" }));
    this.tabs = control("div", { className: "kinds", label: "Lists" });
    this.tabs.setAttribute("role", "group");
    this.list = control("ol", { className: "queue", label: "Suggestions" });
    this.view = element("div", "subject");
    this.actions = control("div", { className: "doing", label: "Decide" });
    this.actions.setAttribute("role", "group");
    this.made = element("aside", "made");
    this.made.setAttribute("aria-label", "Decisions");
    this.main = element("div", "desk", this.list, element("div", "stage", this.view, this.actions), this.made);
    this.message = element("div", "empty");
    root.append(this.tabs, this.message, this.main);
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  // ---- routes and data ----------------------------------------------------------------------------------------------------

  async show(params) {
    this.shown = true;
    this.wanted = { kind: params.get("kind"), key: params.get("key") };
    if (this.wanted.kind && this.wanted.kind === this.kind && this.items[this.at]?.key === this.wanted.key) return;
    await this.guarded(() => this.refresh());
  }

  hide() {
    this.shown = false;
    clearTimeout(this.timer);
  }

  // Run something; show an error in the page's banner.
  async guarded(run) {
    try {
      this.app.fail(null);
      await run();
    } catch (error) {
      this.app.fail(error);
    }
  }

  async refresh() {
    clearTimeout(this.timer);
    const state = await this.state().catch((error) => {
      if (this.shown) this.later();
      throw error;
    });
    this.main.hidden = this.tabs.hidden = state.state !== "ready";
    this.message.hidden = state.state === "ready";
    if (state.state !== "ready") return this.wait(state);
    this.kinds = state.kinds;
    this.stale = state.stale;
    const kind = this.kinds.find((each) => each.kind === (this.wanted.kind ?? this.kind)) ?? this.kinds.find((each) => each.count);
    await Promise.all([this.choose((kind ?? this.kinds[0]).kind, this.wanted.key), this.count()]);
    this.wanted = {};
  }

  // Return the state of the review, which is begun if there is none.
  async state() {
    const state = await this.app.api.get("review");
    return state.state === "none" ? this.app.api.post("review", {}) : state;
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.guarded(() => this.refresh()), WAIT);
  }

  wait(state) {
    const retry = () => this.guarded(() => this.again());
    if (state.state === "failed") {
      this.message.replaceChildren(element("h2", "", "The review failed"), element("p", "error", state.note), button("button", "Try again", retry));
      return;
    }
    const bar = control("progress", { max: 1, value: state.progress, label: "Progress" });
    const said = element("p", "soft", "Comparing every image with its nearest neighbors. You can use the other tabs meanwhile.");
    this.message.replaceChildren(element("h2", "", "Computing the review"), said, bar);
    if (this.shown) this.later();
  }

  async again() {
    await this.app.api.post("review", {});
    await this.refresh();
  }

  async choose(kind, key = null) {
    this.kind = kind;
    const items = (this.items = []);
    this.at = 0;
    this.ended = false;
    await this.more();
    while (key && !this.items.some((each) => each.key === key) && (await this.more())) continue;
    if (items !== this.items) return; // another list was chosen meanwhile
    this.at = Math.max(0, this.items.findIndex((each) => each.key === key));
    this.draw();
    this.keep();
  }

  // Load further suggestions, and return whether there were any.
  async more() {
    const asked = ++this.asked;
    const found = await this.app.api.get(`review/${this.kind}`, { after: this.items.at(-1)?.key, limit: PAGE });
    if (asked !== this.asked) return false; // another list was chosen meanwhile
    this.items.push(...found.items);
    this.ended = found.items.length < PAGE;
    this.total = found.total + this.items.filter((each) => each.done).length;
    return found.items.length > 0;
  }

  async count() {
    this.decisions = await this.app.api.get("decisions");
    this.drawMade();
  }

  // ---- drawing ------------------------------------------------------------------------------------------------------------

  draw() {
    this.drawKinds();
    this.list.replaceChildren(...this.items.map((item, i) => element("li", "", this.row(item, i))));
    this.drawSubject();
  }

  drawKinds() {
    const buttons = this.kinds.map(({ kind, title, count }) => {
      const made = button("chip", title, () => this.guarded(() => this.choose(kind)));
      made.append(pill(count));
      made.setAttribute("aria-pressed", kind === this.kind);
      return made;
    });
    const old = button("chip stale", "The catalog has changed. Review again", () => this.guarded(() => this.again()));
    this.tabs.replaceChildren(...buttons, ...(this.stale ? [old] : []));
  }

  row(item, i) {
    const [first] = item.items;
    const other = item.suggestions[0];
    const names = element("span", "names", element("bdi", "product", product(first)));
    const arrow = { relabel: "→ ", merge: "= " }[other.action];
    names.append(element("span", "to", item.done ? `✓ ${item.done}` : "", !item.done && arrow ? element("bdi", "", arrow + other.value) : ""));
    if (!item.done && !arrow) names.lastChild.append(element("bdi", "", first.id));
    const made = button(item.done ? "row done" : "row", picture(first, 96), () => this.go(i));
    made.append(names, element("span", "rank", (i + 1).toLocaleString("en")));
    if (i === this.at) made.setAttribute("aria-current", "true");
    return made;
  }

  drawSubject() {
    const item = this.items[this.at];
    this.main.classList.toggle("nothing", !item);
    this.view.className = `subject ${this.kind}`;
    if (!item) {
      const title = this.kinds.find((each) => each.kind === this.kind).title;
      const why = this.kind === "leaks" ? " Parts are read from the metadata field “split”." : "";
      this.view.replaceChildren(element("div", "empty", element("h2", "", "Nothing to review"), element("p", "soft", `${title}: none left.${why}`)));
      this.drawActions();
      return;
    }
    const position = `${(this.at + 1).toLocaleString("en")} of ${Math.max(this.total, this.items.length).toLocaleString("en")}`;
    const status = item.done ? element("span", "badge", `✓ ${item.done}`) : "";
    const steps = element("span", "steps", this.doer("previous", "K", "↑", "", "Previous"), this.doer("next", "J", "↓", "", "Next"));
    const where = element("div", "where", element("p", "soft", `${position} · ${EXPLAINED[this.kind]}`), steps);
    const head = element("header", "", where, element("h2", "", item.reason, " ", status));
    const paired = PAIRED.includes(this.kind);
    const two = this.kind === "two";
    const left = this.side(two ? "These are apart" : paired ? product(item.items[0]) : "In question", item.items, paired ? 480 : 0, "first");
    const right = this.side(two ? "The others" : paired ? product(item.evidence[0]) : item.evidence.length > 1 ? "Nearest images" : "Nearest image", item.evidence, 384, "rest");
    this.view.replaceChildren(head, element("div", "sides", left, right));
    this.drawActions();
  }

  // Return a heading and images: the first one large if `size` is 0.
  side(title, items, size, className) {
    const figures = items.map((each) => {
      const address = size ? undefined : this.app.api.image(each.id);
      const open = button("open", picture(each, size || 1024, address), () => this.app.openItem(each.id), `Open ${each.id}`);
      const said = element("figcaption", "", element("bdi", "product", product(each)), element("span", "line", element("bdi", "id", each.id)));
      if (each.distance !== undefined) said.lastChild.append(element("span", "soft distance", element("span", "unseen", "distance "), nearness(each.distance)));
      const made = element("figure", "", open, said);
      if (className === "rest") made.classList.add(each.product === this.items[this.at].suggestions[0].value ? "says" : "other");
      return made;
    });
    return element("section", `${className} of${Math.min(figures.length, 6)}`, element("h3", "", title), element("div", "figures", ...figures));
  }

  // Return a button for an action, with its key.
  doer(name, key, label, className = "", said = undefined) {
    const made = button(`button ${className}`, label, () => this.act(name), said);
    made.append(element("kbd", "", key));
    made.dataset.action = name;
    made.setAttribute("aria-keyshortcuts", key);
    return made;
  }

  drawActions() {
    const item = this.items[this.at];
    const made = [];
    const add = (...given) => made.push(this.doer(...given));
    const focused = this.focused();
    if (item) {
      const { action, value, images } = item.suggestions[0];
      const what = { drop: "Drop", relabel: "Relabel", merge: "Merge" }[action];
      const accept = element("span", "", what);
      if (this.kind === "two") accept.append(` ${counted(images, "image", "images")}`);
      if (value) accept.append(action === "merge" ? " into " : " to ", element("bdi", "", value));
      add("accept", "A", accept, "primary");
      add("keep", "X", PAIRED.includes(this.kind) || this.kind === "duplicates" ? "Keep both" : "Keep");
      if (this.kind !== "one") add("relabel", "R", "Relabel …");
      if (this.kind === "one" || this.kind === "labels") add("merge", "M", "Merge …");
      if (action !== "drop" && !PAIRED.includes(this.kind)) add("drop", "D", "Drop");
    }
    if (this.decisions?.decisions.length) add("undo", "U", "Undo", "quietly");
    this.actions.replaceChildren(...made);
    this.focus(focused);
  }

  // Return the action of the focused button, which is drawn again, and focus it.
  focused() {
    return this.main.contains(document.activeElement) ? document.activeElement.dataset.action : undefined;
  }

  focus(name) {
    if (name) this.root.querySelector(`[data-action=${name}]`)?.focus();
  }

  drawMade() {
    const { path, counts, command } = this.decisions;
    const total = Object.values(counts).reduce((sum, each) => sum + each, 0);
    const said = Object.entries(counts).map(([action, count]) => element("li", "", pill(count), DONE[action]));
    const copy = button("quiet", "Copy", () => navigator.clipboard.writeText(command).then(() => (copy.textContent = "Copied")), "Copy the command");
    this.made.replaceChildren(
      element("h3", "", counted(total, "decision", "decisions")),
      total ? element("ul", "counts", ...said) : element("p", "soft", "Images are never changed. Decisions are lines of a CSV file, which the next training takes:"),
      element("p", "file", total ? control("a", { href: "decisions.csv", download: "decisions.csv" }, element("bdi", "", path)) : element("bdi", "", path)),
      element("p", "soft", "Use them with ", copy),
      element("code", "", command),
    );
    if (this.kinds.length && !this.actions.querySelector("form")) this.drawActions();
  }

  // ---- moving and deciding ------------------------------------------------------------------------------------------------

  go(i) {
    if (i < 0 || i >= this.items.length) return;
    const [before, focused] = [this.at, this.focused()];
    this.at = i;
    for (const each of [before, i]) this.redrawRow(each);
    this.drawSubject();
    this.focus(focused);
    const row = this.list.children[i];
    row.scrollIntoView({ block: "nearest", inline: "nearest" });
    const item = this.items[i];
    this.keep();
    this.app.say(`${i + 1} of ${this.total}, ${product(item.items[0])}: ${item.reason}`);
    if (i > this.items.length - PAGE / 2) this.extend();
  }

  // Write the place into the address.
  keep() {
    if (this.shown) this.app.keep(this.app.hash("review", { kind: this.kind, key: this.items[this.at]?.key }));
  }

  redrawRow(i) {
    const focused = this.list.children[i].contains(document.activeElement);
    this.list.children[i].replaceChildren(this.row(this.items[i], i));
    if (focused) this.list.children[i].firstChild.focus();
  }

  async extend() {
    if (this.extending || this.ended) return this.extending;
    this.extending = this.append().finally(() => (this.extending = null));
    return this.extending;
  }

  async append() {
    const { items } = this;
    const before = items.length;
    await this.guarded(() => this.more());
    if (items !== this.items) return; // another list was chosen meanwhile
    this.list.append(...items.slice(before).map((item, i) => element("li", "", this.row(item, before + i))));
  }

  onKey(event) {
    const name = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    const { target } = event;
    const busy = target.closest?.(CONTROLS) || document.querySelector("dialog[open]");
    if (!this.shown || this.main.hidden || !name || busy || event.ctrlKey || event.metaKey || event.altKey) return;
    if (target !== document.body && !this.root.contains(target)) return;
    if (["ArrowUp", "ArrowDown"].includes(event.key) && !this.list.contains(target)) return; // scroll
    if (event.repeat && !["next", "previous"].includes(name)) return;
    if (event.key === "Enter" && event.target.closest?.("button, a, summary")) return;
    event.preventDefault();
    this.act(name);
  }

  act(name) {
    const item = this.items[this.at];
    if (name === "next" || name === "previous") return this.go(this.at + (name === "next" ? 1 : -1));
    if (this.deciding) return undefined;
    if (name === "undo") return this.guarded(() => this.undo());
    if (!item || item.done) return undefined;
    const [{ action, value }] = item.suggestions;
    if (name === "accept") return this.decide(action, value);
    if (name === "keep") return this.decide("keep");
    if (name === "drop") return PAIRED.includes(this.kind) ? undefined : this.decide("drop");
    if (name === "merge" && !["one", "labels"].includes(this.kind)) return undefined;
    if (name === "relabel" && this.kind === "one") return undefined;
    return this.ask(name, value || item.evidence[0]?.product || "");
  }

  // Ask for a product, with the products of the catalog as suggestions.
  ask(action, value) {
    const item = this.items[this.at];
    const options = control("datalist", { id: "products" });
    const input = control("input", { type: "text", value, required: true, autocomplete: "off", label: "Product" });
    input.setAttribute("list", "products");
    const search = async () => {
      const found = await this.app.api.get("classes", { q: input.value, limit: 30 }).catch(() => []);
      options.replaceChildren(...found.map((each) => control("option", { value: each.product })));
    };
    input.addEventListener("input", search);
    const label = element("label", "", action === "merge" ? `Merge all images of “${product(item.items[0])}” into ` : "The right product is ", input);
    const cancel = () => {
      this.drawActions();
      this.actions.querySelector(`[data-action=${action}]`)?.focus();
    };
    const onsubmit = (event) => {
      event.preventDefault();
      if (input.value.trim()) this.decide(action, input.value.trim());
    };
    const onkeydown = (event) => {
      if (event.key === "Escape") cancel();
    };
    const send = control("button", { type: "submit", className: "button primary" }, { relabel: "Relabel", merge: "Merge" }[action]);
    const form = control("form", { onsubmit, onkeydown, className: "asking" }, label, options, send, button("button", "Cancel", cancel));
    this.actions.replaceChildren(form);
    search();
    input.select();
  }

  async decide(action, value = "") {
    if (this.deciding) return;
    const { at, items, kind } = this;
    const item = items[at];
    this.deciding = true;
    await this.guarded(async () => {
      await this.app.api.post("decisions", { kind, key: item.key, action, value });
      item.done = `${DONE[action]}${value && action === "relabel" ? ` to ${value}` : ""}`;
      if (items !== this.items) return; // another list was chosen meanwhile
      this.redrawRow(at);
      const following = () => items.findIndex((each, i) => i > at && !each.done);
      if (following() < 0) await this.extend();
      if (items !== this.items) return;
      const next = following();
      if (this.at === at && next > 0) this.go(next);
      else this.drawSubject();
      this.app.say(`${item.items[0].id} ${item.done}. ${next > 0 ? `Next: ${items[next].reason}` : "The list is at its end."}`);
    });
    this.deciding = false; // the next key counts before the counts are there
    if (item.done) await this.guarded(() => this.changed());
  }

  async undo() {
    this.deciding = true;
    try {
      const { kind, key } = await this.app.api.remove("decisions");
      await this.changed();
      const at = kind === this.kind ? this.items.findIndex((each) => each.key === key) : -1;
      if (at < 0) await this.choose(kind in EXPLAINED ? kind : this.kind, key);
      else delete this.items[at].done;
      this.go(at < 0 ? this.at : at);
      this.app.say("Undone: the last decision.");
    } finally {
      this.deciding = false;
    }
  }

  // Read the counts again.
  async changed() {
    const [state] = await Promise.all([this.app.api.get("review"), this.count()]);
    this.kinds = state.kinds;
    this.drawKinds();
  }
}
