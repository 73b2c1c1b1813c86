// The map of the whole catalog: state of its layout, selection, lasso, colors, and the place in the hash.

import { button, counted, element, named, nearness } from "./cards.js";
import { Lasso } from "./map_lasso.js";
import { HUES, LiveNames, LiveScene, LiveSheets, LiveView, VALUES } from "./map_tiles.js";
import { Atlas } from "./map/map.js";
import { Panel, Search } from "./map/map_panel.js";
import { FAINT, FILL, PLAIN } from "./map/map_picture.js";

const POLL = 700; // milliseconds between looks at a layout that is being made
const SOON = 3000; // items whose map is made without asking
const NEIGHBORS = 8;
const PINNED = 4000; // items of a class or a selection that are shown at any zoom
const PAGE = 500; // items per request of an exported list
const FRAME = `
<div class="bar">
  <div class="search">
    <input type="text" role="combobox" aria-label="Search for a class" aria-autocomplete="list" aria-expanded="false"
           autocomplete="off" autocapitalize="none" spellcheck="false" placeholder="Search for a class">
    <button type="button" class="clear" aria-label="Clear the search" hidden>×</button>
    <ul role="listbox" aria-label="Classes" hidden></ul>
  </div>
  <button type="button" class="select-area" aria-pressed="false">Lasso</button>
  <label class="coloring"><span>Color</span> <select aria-label="Color"></select></label>
</div>
<div class="body">
  <div class="stage">
    <canvas class="plane" tabindex="0" role="application" aria-roledescription="map"></canvas>
    <div class="legend" hidden></div>
    <div class="zoom">
      <button type="button" class="in" aria-label="Zoom in">+</button>
      <button type="button" class="out" aria-label="Zoom out">−</button>
      <button type="button" class="whole" aria-label="Show the whole map">⤢</button>
    </div>
    <p class="message" hidden></p>
    <div class="card" aria-hidden="true" hidden>
      <canvas></canvas>
      <p><bdi class="class"></bdi><bdi class="caption"></bdi></p>
    </div>
  </div>
  <div class="panel" role="region" aria-label="Selection" tabindex="0">
    <div class="nothing">
      <p>Select an item to see its nearest neighbors, or draw a lasso around many.</p>
      <dl>
        <div><dt>Move</dt><dd>drag<span class="keys">, or arrow keys</span></dd></div>
        <div><dt>Zoom</dt><dd><span class="keys">wheel, double click, or <kbd>+</kbd> <kbd>−</kbd> <kbd>0</kbd></span><span class="fingers">pinch, or the buttons</span></dd></div>
        <div><dt>Select</dt><dd><span class="keys">click, or <kbd>Enter</kbd> for the item at the center</span><span class="fingers">tap</span></dd></div>
        <div class="keys"><dt>Lasso</dt><dd><kbd>L</kbd>, then drag; or <kbd>Enter</kbd> for all in view</dd></div>
        <div class="keys"><dt>Deselect</dt><dd><kbd>Esc</kbd></dd></div>
      </dl>
    </div>
    <div class="chosen" hidden></div>
  </div>
</div>
<p class="foot"><span class="counts"></span> <span class="note"></span></p>`;

class LiveAtlas extends Atlas {
  constructor(root, app, state) {
    const { items: n, classes } = state;
    const view = new LiveView({ ...state, n }, app.api, () => this.ask());
    super(root, { app, state, n, view, slots: view.slots, sizes: { length: classes }, sheets: new LiveSheets(view, app.api) });
    this.camera.deepest = 8192;
    this.base = null;
  }

  makeParts() {
    const { root, app } = this;
    this.selected = null; // items of the lasso or of the class that is searched for
    this.scene = new LiveScene(this);
    this.names = new LiveNames(this);
    this.panel = new LivePanel(root, this);
    const source = async (text, show) => {
      const found = text.trim() ? await app.api.get("classes", { q: text, limit: 50 }).catch(() => []) : [];
      const some = found.slice(0, 8).map(({ row, product, count }) => ({ number: row, name: product, count }));
      show(some, found.length < 50 ? found.length : some.length); // no rest is told if it is not known
    };
    this.search = new Search(root, source, (number, name) => this.searchFor(number, name));
    this.lasso = new Lasso(this);
    this.offerColors();
    this.find(".counts").textContent = `${counted(this.n, "item", "items")} of ${counted(this.state.classes, "class", "classes")}.`;
    this.names.load(app.api).then(() => this.ask(), app.fail);
  }

  end() {
    super.end();
    clearTimeout(this.timer);
    this.sheets.end();
  }

  say(text) {
    this.app.say(text);
  }

  caption(i) {
    const item = this.sheets.about.get(i);
    if (!item) {
      this.sheets.learned(i).then(() => {
        this.find(".stage > .card").dataset.image = ""; // write it again
        this.ask();
      });
    }
    return item?.id ?? "…";
  }

  className(i) {
    return this.sheets.about.get(i)?.product || (this.sheets.about.has(i) ? "no product" : "…");
  }

  kindsOf(i) {
    const own = this.className(i);
    return this.view.neighborsOf(i).map((j) => (this.className(j) === own ? "right" : "wrong"));
  }

  frame(now) {
    super.frame(now);
    if (this.camera.width && !this.camera.flight) this.write();
  }

  coloring() {
    return this.view.color;
  }

  // Call after a change of what is selected: items are plain or faint, and some are shown at any zoom.
  choice() {
    const { shown } = this.scene;
    shown.fill(this.selected ? FAINT : PLAIN);
    this.selected?.forEach((i) => (shown[i] = PLAIN));
    this.view.pinned = new Set(this.selected?.length <= PINNED ? this.selected : []);
    this.scene.least = this.selected?.length <= 60 ? 26 : 0;
    if (this.camera.width) this.repaint();
  }

  async choose(i, options = {}) {
    try {
      await this.select(i, options);
    } catch (error) {
      this.app.fail(error);
      if (error.status === 404) this.view.onLost();
    }
  }

  async select(i, options) {
    this.lasso.stop();
    if (i === null && this.lassoed) this.lasso.clear();
    this.image = i;
    this.over = null;
    if (i === null) {
      this.panel.clear();
      this.say("Nothing selected.");
      return this.ask();
    }
    const [item, near] = await Promise.all([this.sheets.learned(i), this.app.api.get(`map/near/${i}`, { k: NEIGHBORS, version: this.view.version })]);
    if (this.image !== i) return undefined;
    near.forEach((each) => this.sheets.note(each));
    this.view.near.set(i, near.map(({ row }) => row));
    this.panel.show(item, near);
    if (options.focus) this.panel.chosen.querySelector(".near button")?.focus({ preventScroll: true });
    if (options.go) this.camera.flyTo(item.x, item.y, Math.max(this.camera.zoom, (60 * Math.sqrt(Math.min(this.n, 40_000))) / FILL));
    const right = near.filter(({ product }) => product && product === item.product).length;
    this.say(`Selected: ${item.id}, ${item.product || "no product"}; ${right} of ${counted(near.length, "neighbor", "neighbors")} of the same product.`);
    return this.ask();
  }

  async searchFor(number, name) {
    this.searched = number;
    this.lassoed = false;
    if (number === null) {
      this.selected = null;
      this.say("All classes are shown.");
      return this.choice();
    }
    const { rows, places, total } = await this.app.api.get("map/find", { product: name, version: this.view.version }).catch((error) => {
      this.app.fail(error);
      return { total: 0 };
    });
    if (this.searched !== number || !total) return undefined;
    this.selected = rows;
    rows.forEach((i, at) => {
      this.view.put(i, ...places[at]);
      if (!this.view.home[i]) this.view.kinds[i] = this.view.color === "class" ? number % HUES : this.view.none;
    });
    this.className_ = name;
    this.choice();
    this.flyAround(places);
    return this.say(`${counted(total, "item", "items")} of class ${name} shown.`);
  }

  flyAround(places) {
    const [xs, ys] = [0, 1].map((c) => places.map((place) => place[c]).sort((a, b) => a - b));
    const some = (sorted, part) => sorted[Math.round(part * (sorted.length - 1))];
    const trim = places.length > 20 ? 0.02 : 0; // far outliers
    const [left, right, top, bottom] = [some(xs, trim), some(xs, 1 - trim), some(ys, trim), some(ys, 1 - trim)];
    const { width, height } = this.camera;
    const fits = 0.7 * Math.min(width / Math.max(right - left, 1e-9), height / Math.max(bottom - top, 1e-9));
    const seen = (90 * Math.sqrt(Math.min(this.n, 40_000))) / FILL;
    this.camera.flyTo((left + right) / 2, (top + bottom) / 2, Math.min(fits, Math.max(seen, this.camera.whole())));
  }

  // ---- colors ---------------------------------------------------------------------------------------------------------------

  offerColors() {
    const options = [["class", "by class"], ["outcome", "by outcome"]];
    options.push(...this.state.fields.map(({ name }) => [`field:${name}`, `by ${name}`]));
    const select = this.find("select");
    select.replaceChildren(...options.map(([value, text]) => Object.assign(element("option", "", text), { value })));
    select.addEventListener("change", () => this.setColor(select.value));
  }

  async setColor(color) {
    const select = this.find("select");
    if (![...select.options].some(({ value }) => value === color)) return;
    this.wanted = color; // the last one that was asked for
    select.value = color;
    if (color === this.view.color) return;
    const message = this.find(".message");
    if (color === "outcome") Object.assign(message, { hidden: false, textContent: "Finding the nearest neighbor of each item …" });
    try {
      const legend = await this.app.api.get("map/legend", { color, version: this.view.version });
      if (this.wanted !== color || !(await this.view.recolor(color, legend))) return;
      this.scene.legend = legend;
      this.showLegend(legend);
      this.repaint();
      this.say(`Colored ${select.selectedOptions[0].textContent}.`);
    } catch (error) {
      this.app.fail(error);
      if (this.wanted === color) select.value = this.view.color;
    } finally {
      if (this.wanted === color || this.wanted === this.view.color) message.hidden = true;
    }
  }

  showLegend(legend) {
    const { kind } = legend;
    const number = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4 });
    const line = (at, text, count) => {
      const swatch = element("span", "swatch");
      swatch.dataset.color = at;
      return element("li", "", swatch, element("bdi", "", text), element("span", "count", number(count)));
    };
    const lines = [];
    if (kind === "outcome") {
      const words = ["nearest neighbor of the same class", "of another class", "only item of its class, or no product"];
      lines.push(...words.map((text, at) => line(at, text, legend.counts[at])));
    } else if (kind === "text") {
      lines.push(...legend.values.map(([text, count], at) => line(at, text, count)));
      if (legend.others) lines.push(line(VALUES, "other values", legend.others));
    }
    if (legend.missing) lines.push(line(this.view.none, "no value", legend.missing));
    const content = lines.length ? [element("ul", "", ...lines)] : [];
    if (kind === "number") {
      const ends = element("p", "ends", element("span", "", number(legend.min)), element("span", "", number(legend.max)));
      content.unshift(element("canvas", "ramp"), ends);
    }
    if (legend.exact === false) content.push(element("p", "soft", "Approximate neighbors."));
    this.find(".legend").hidden = kind === "class";
    this.find(".legend").replaceChildren(...(legend.field ? [element("h3", "", legend.field)] : []), ...content);
  }

  repaint() {
    super.repaint();
    for (const swatch of this.find(".legend").querySelectorAll(".swatch")) {
      swatch.style.background = this.scene.names[swatch.dataset.color];
    }
    const ramp = this.find(".ramp");
    if (!ramp) return;
    Object.assign(ramp, { width: 255, height: 1 });
    for (let x = 0; x < 255; x++) {
      ramp.getContext("2d").fillStyle = this.scene.names[x];
      ramp.getContext("2d").fillRect(x, 0, 1, 1);
    }
  }

  // ---- the place in the hash ------------------------------------------------------------------------------------------------

  // Write the place on the map into the hash, once it is at rest.
  write() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      if (!location.hash.startsWith("#map") || !this.root.offsetParent) return;
      const { x, y, zoom } = this.camera;
      const digits = Math.ceil(Math.log10(zoom)) + 1;
      const z = Math.log2(zoom / this.camera.whole()).toFixed(3);
      const params = { x: x.toFixed(digits), y: y.toFixed(digits), z, class: this.searched === null ? null : this.className_ };
      params.color = this.view.color === "class" ? null : this.view.color;
      params.id = this.image === null ? null : this.sheets.about.get(this.image)?.id;
      this.written = this.app.hash("map", params);
      if (this.written !== location.hash) this.app.keep(this.written);
    }, 250);
  }

  // Show the place that a hash names.
  async restore(params) {
    if (this.app.hash("map", Object.fromEntries(params)) === this.written || ![...params].length) return;
    const [x, y, z] = ["x", "y", "z"].map((name) => (params.has(name) ? Number(params.get(name)) : NaN));
    const placed = [x, y, z].every(Number.isFinite);
    const settle = () => placed && this.camera.set(x, y, this.camera.whole() * 2 ** z);
    settle();
    if (params.get("color")) await this.setColor(params.get("color"));
    const product = params.get("class");
    const option = product && (await this.app.api.get("classes", { q: product, limit: 1000 })).find((each) => each.product === product);
    if (option) this.search.choose({ number: option.row, name: product });
    if (params.get("id")) {
      const { rows } = await this.app.api.get("map/find", { id: params.get("id"), version: this.view.version });
      if (rows.length) await this.choose(rows[0], { go: !placed });
      else this.say(`There is no item ${params.get("id")}.`);
    }
    if (option) setTimeout(settle, 50); // after the search, which goes to the class
    settle();
  }

  // Write the items as a CSV file: id, path and product.
  async export(rows, told) {
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = ["id,path,product\r\n"];
    for (let at = 0; at < rows.length; at += PAGE) {
      told(`${Math.round((100 * at) / rows.length)} %`);
      const found = await this.app.api.get("map/rows", { rows: rows.slice(at, at + PAGE).join(), version: this.view.version });
      for (const { id, path, product } of found) lines.push(`${[id, path, product].map(quoted).join()}\r\n`);
    }
    const link = Object.assign(element("a"), { href: URL.createObjectURL(new Blob(lines, { type: "text/csv" })), download: "selection.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    told("Export list");
    this.say(`${counted(rows.length, "item", "items")} written to selection.csv.`);
  }
}

// Panel beside the map: an item with its neighbors, or the content of a lasso.
class LivePanel extends Panel {
  fill(...content) {
    this.chosen.parentElement.scrollTop = 0;
    this.chosen.replaceChildren(...content);
    this.nothing.hidden = true;
    this.chosen.hidden = false;
  }

  closer(label, run) {
    const close = button("close", "×", run);
    close.setAttribute("aria-label", label);
    return close;
  }

  show(item, near) {
    const { atlas } = this;
    const { app } = atlas;
    const canvas = element("canvas");
    canvas.setAttribute("aria-hidden", "true");
    atlas.sheets.show(canvas, item.row, 112);
    const text = element("div", "text", named("class", item.product || "no product"), named("caption", item.id));
    const head = element("div", "query", canvas, text, this.closer("Deselect the item", () => atlas.choose(null)));
    const fields = element("dl", "fields");
    for (const [name, value] of Object.entries(item.metadata)) {
      fields.append(element("div", "", element("dt", "", name), element("dd", "", element("bdi", "", String(value)))));
    }
    const actions = element("p", "buttons", button("", "Open", () => app.openItem(item.id)));
    actions.append(button("", "Search with it", () => app.go(app.hash("find", { id: item.id }))));
    const list = element("div", "near");
    const most = near.at(-1)?.distance || 1;
    for (const each of near) {
      const right = item.product && each.product === item.product;
      const said = element("span", right ? "right" : "wrong", right ? "✓ same product" : "✗ other product");
      const card = app.card(each, { most, note: said, onOpen: () => atlas.choose(each.row, { go: true, focus: true }) });
      card.classList.add(right ? "same" : "other");
      for (const type of ["pointerenter", "focusin"]) card.addEventListener(type, () => atlas.point(each.row));
      for (const type of ["pointerleave", "focusout"]) card.addEventListener(type, () => atlas.point(null));
      list.append(card);
    }
    const title = near.length ? `Its ${counted(near.length, "nearest neighbor", "nearest neighbors")}` : "No other items";
    this.fill(head, fields, actions, element("h3", "", title), list);
  }

  // Show what is inside a lasso.
  showSelection({ rows, classes, different, central }) {
    const { atlas } = this;
    const { app } = atlas;
    const head = element("div", "query wide", element("p", "title", counted(rows.length, "item", "items")));
    head.append(this.closer("Clear the selection", () => atlas.lasso.clear()));
    const list = element("ul", "classes");
    for (const [name, count] of classes) {
      const bar = element("span", "share");
      bar.style.width = `${(100 * count) / classes[0][1]}%`;
      list.append(element("li", "", bar, element("bdi", "", name || "no product"), element("span", "count", count.toLocaleString("en"))));
    }
    const more = different - classes.length;
    if (more > 0) list.append(element("li", "soft", `and ${counted(more, "class", "classes")} more`));
    const save = button("", "Export list", () => atlas.export(rows, (told) => (save.textContent = told)).catch(app.fail));
    const actions = element("p", "buttons", save);
    actions.append(button("", "Search with it", () => app.go(app.hash("find", { id: central }))));
    actions.lastChild.title = "With the item that is nearest to the mean of the selection";
    this.fill(head, actions, element("h3", "", counted(different, "class", "classes")), list);
  }
}

// ---- the tab ----------------------------------------------------------------------------------------------------------------

// Add the style sheets of the map, and wait for them.
function styled() {
  const sheets = ["static/map/map.css", "static/map_tab.css"].map((href) => {
    const link = Object.assign(element("link"), { rel: "stylesheet", href });
    document.head.append(link);
    return new Promise((done) => ["load", "error"].forEach((type) => link.addEventListener(type, done)));
  });
  return Promise.all(sheets);
}

export async function mount(root, app) {
  let known = app.api.get("map"); // while the style sheets are loaded
  known.catch(() => {}); // `look` tells
  await styled();
  const page = element("div", "lifted-map live-map");
  root.append(page);
  page.id = "catalog-map";
  let [atlas, shown, timer, said] = [null, false, null, ""];

  const say = (text) => text !== said && app.say((said = text));
  const start = async (again) => {
    await app.api.post(`map${again ? "?again=true" : ""}`).catch(app.fail);
    look();
  };
  const open = (state) => {
    atlas?.end();
    page.innerHTML = FRAME;
    atlas = page.atlas = new LiveAtlas(page, app, state);
    atlas.view.onLost = look;
    say(`Map of ${counted(state.items, "item", "items")}.`);
    atlas.restore(new URLSearchParams(location.hash.split("?")[1])).catch(app.fail);
  };
  const duration = (seconds) => (seconds < 90 ? "about a minute" : `about ${Math.ceil(seconds / 60)} minutes`);
  const tell = ({ state, items, progress, seconds, elapsed, note }) => {
    const texts = {
      none: items ? `The map of ${counted(items, "item", "items")} is made once, in ${duration(seconds)}, and kept.` : "The catalog is empty. Add images, and they appear here.",
      failed: `The map cannot be made: ${note}`,
      building: "The map is being made.",
    };
    const rest = Math.max(5, progress > 0.05 ? elapsed / progress - elapsed : seconds - elapsed);
    const bar = element("progress");
    Object.assign(bar, { value: progress, max: 1, ariaLabel: "Progress" });
    const more = rest < 90 ? `${Math.ceil(rest / 5) * 5} seconds` : `${Math.ceil(rest / 60)} minutes`;
    const parts = state === "building" ? [bar, element("p", "soft", `${Math.floor(100 * progress)} %, about ${more} left`)] : [];
    if (items && state !== "building") parts.push(button("primary", "Make the map", () => start()));
    page.replaceChildren(element("div", "making", element("p", "", texts[state]), ...parts));
    say(state === "building" ? `${texts.building} ${Math.floor(progress * 10) * 10} %.` : texts[state]);
  };
  const look = async () => {
    clearTimeout(timer);
    let state;
    try {
      state = await (known ?? app.api.get("map"));
      known = null;
    } catch (error) {
      known = null;
      app.fail(error);
      if (shown) timer = setTimeout(look, POLL);
      return;
    }
    if (!shown) return;
    const ready = state.state === "ready";
    if (ready && atlas?.state.version !== state.version) open(state);
    else if (!ready) {
      atlas?.end();
      atlas = null;
      tell(state);
    }
    if (ready) noted(state);
    if (state.state === "none" && state.items && state.items <= SOON) start();
    else if (state.state === "building" || state.busy) timer = setTimeout(look, POLL);
  };
  const noted = ({ note, busy }) => {
    const again = note && !busy ? button("", "Make it again", () => start(true)) : null;
    page.querySelector(".note").replaceChildren(...(busy ? ["The map is being brought up to date …"] : note ? [`${note}. `, again] : []));
  };
  return {
    show(given) {
      shown = true;
      if (atlas) atlas.restore(given).catch(app.fail);
      atlas?.resize();
      look();
    },
    hide() {
      shown = false;
      clearTimeout(timer);
    },
  };
}
