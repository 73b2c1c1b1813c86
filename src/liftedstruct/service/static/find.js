// Find: a photo or an item is the query, the answers are cards. The hash holds everything but the pixels of a photo.

import { answerOf } from "./answer.js";
import { button, control, element, named, picture } from "./cards.js";
import { Crop } from "./crop.js";
import { Facets } from "./facets.js";

const PAUSE = 220; // milliseconds without a change before the photo is searched again
const MOST = 100; // items that a filter selects, to start from
const SOME = 24; // of the whole catalog
const COUNTS = [10, 20, 50, 100];

class Find {
  constructor(root, app) {
    Object.assign(this, { root, app, photos: new Map(), params: {}, request: null, timer: 0, crop: null });
    const { items, fields, model, address } = app.status;
    const vectors = "A photo cannot be searched: the catalog holds vectors only, without a model. Start from an item.";
    this.refusal = items ? (model.sha ? "" : vectors) : "The catalog is empty. Add images first.";
    this.listen();
    if (!items) {
      const command = element("code", "", `liftedstruct catalog add ${address} photos/`);
      const text = ["Add images with ", command, ", then reload this page."];
      root.append(element("div", "empty", element("h2", "", "The catalog is empty"), element("p", "", ...text)));
      return;
    }
    this.query = element("div", "query");
    this.facets = new Facets(fields, (where) => this.change({ where }));
    const onchange = () => this.change({ k: this.k.value, group: this.group.checked ? "product" : "" });
    this.k = control("select", { onchange }, ...COUNTS.map((count) => new Option(count, count)));
    this.group = control("input", { type: "checkbox", onchange });
    const labels = [element("label", "", "Show ", this.k, " answers"), element("label", "", this.group, "one per product")];
    const summary = element("summary", "", "Filters and options");
    this.filters = element("details", "filters", summary, element("p", "options", ...labels), this.facets.root);
    this.filters.open = matchMedia("(min-width: 761px)").matches;
    this.answer = control("div", { className: "answer", role: "region", label: "Answers", tabIndex: -1 });
    root.append(element("div", "controls", this.query, this.filters), this.answer);
  }

  // Take photos from anywhere on the page, on every tab.
  listen() {
    const target = control("div", { className: "dropping", hidden: true }, element("p", "", "Drop the photo to search for it"));
    document.body.append(target);
    const on = (type, files, run) => document.addEventListener(type, (event) => {
      target.hidden = true;
      if (!files(event)) return;
      event.preventDefault();
      run(event);
    });
    const dragged = (event) => event.dataTransfer?.types.includes("Files");
    on("dragover", dragged, () => (target.hidden = false));
    on("dragleave", dragged, (event) => (target.hidden = !event.relatedTarget));
    on("drop", dragged, (event) => this.take(event.dataTransfer.files));
    on("paste", (event) => event.clipboardData?.files.length, (event) => this.take(event.clipboardData.files));
  }

  // Search for a photo that was dropped, pasted or chosen: the first image of the files.
  take(files) {
    const { app, photos } = this;
    const file = [...files].find((each) => each.type.startsWith("image/")) ?? files[0];
    if (!file || this.refusal) return app.fail(file && new Error(this.refusal));
    photos.set(photos.size + 1, { name: file.name, url: URL.createObjectURL(file), file });
    return this.start({ photo: photos.size });
  }

  // Start another query with the filter and the options of this one.
  start(query) {
    const { where, k, group } = this.params;
    this.app.go(this.app.hash("find", { where, k, group, ...query }));
    this.answer.focus({ preventScroll: true }); // what had the focus is gone
    window.scrollTo({ top: 0 });
  }

  change(changed) {
    this.app.go(this.app.hash("find", { ...this.params, ...changed }), { replace: true });
  }

  hide() {
    this.request?.abort();
    clearTimeout(this.timer);
  }

  show(params) {
    if (!this.query) return;
    const before = this.params;
    this.params = Object.fromEntries(params);
    const { id, photo, crop = "", where = "", k = "20", group = "" } = this.params;
    const same = this.query.firstChild && id === before.id && photo === before.photo;
    if (!same) this.drawQuery(id, this.photos.get(Number(photo)), photo);
    if (this.crop && crop !== this.crop.value) this.crop.show(crop);
    if (where !== this.facets.input.value) this.facets.show(where);
    this.k.value = COUNTS.includes(Number(k)) ? k : "20";
    this.group.checked = Boolean(group);
    this.hide();
    this.timer = setTimeout(() => this.search(), same && crop !== (before.crop ?? "") ? PAUSE : 0); // the box may move on
  }

  chooser(className, text, capture) {
    const onchange = (event) => this.take(event.target.files);
    const kind = { type: "file", accept: "image/*", disabled: this.refusal };
    const input = control("input", { className: "unseen", ...kind, onchange });
    if (capture) input.setAttribute("capture", capture);
    return element("label", `button ${className}`, input, text);
  }

  drawQuery(id, photo, wanted) {
    const another = this.chooser("primary", photo || id ? "Another photo" : "Choose a photo");
    const buttons = element("p", "buttons", another, this.chooser("camera", "Take a photo", "environment"));
    const leave = button("close", "×", () => this.start({}), "Remove the query");
    const shown = element("div", "shown", leave);
    this.crop = null;
    if (photo) {
      const onerror = () => image.replaceWith(element("span", "missing", "The browser cannot show this photo."));
      const image = control("img", { alt: `Query: ${photo.name}`, draggable: false, src: photo.url, onerror });
      this.crop = new Crop(image, (crop) => this.change({ crop }));
      shown.prepend(this.crop.root);
      const name = element("p", "name", named("", photo.name));
      this.query.replaceChildren(shown, name, element("p", "hint", "Drag on the photo to search a part of it."), buttons);
    } else if (id) {
      const name = element("p", "name", named("product", " "));
      this.query.replaceChildren(shown, name, element("p", "name", named("id", id)), buttons);
      this.app.api.get(this.app.api.item(id)).then((item) => {
        shown.prepend(picture(item, 512));
        name.replaceChildren(named("product", item.product || "no product"));
      }, (error) => shown.prepend(element("span", "picture", element("span", "missing", error.message))));
    } else {
      const gone = wanted ? "The photo of this address is gone, since photos are not stored. Choose it again." : "";
      const keys = element("span", "keys", "Drop a photo anywhere, paste it, or choose a file.");
      const text = element("p", "soft", this.refusal || gone || keys);
      this.query.replaceChildren(element("div", "zone", element("h2", "", "Find by photo"), text, buttons));
    }
  }

  async search() {
    const { app, params: { id, photo, crop, where, k = 20, group: group_by } } = this;
    const request = (this.request = new AbortController());
    const { signal } = request;
    const kept = this.photos.get(Number(photo));
    this.answer.setAttribute("aria-busy", "true");
    try {
      let body = { id, k: Number(k), where, group_by };
      if (kept) {
        body = new FormData();
        const fields = { image: kept.file, k, where, crop, group_by };
        for (const [name, value] of Object.entries(fields)) if (value) body.set(name, value);
      }
      const drawn = kept || id ? this.draw(await app.api.post("search", body, signal)) : await this.browse(where, signal);
      if (signal.aborted) return;
      this.answer.replaceChildren(...drawn);
      this.facets.fail("");
    } catch (error) {
      if (signal.aborted) return;
      const filter = where && /filter|field|compared|text/.test(error.message);
      this.facets.fail(filter ? error.message : "");
      this.filters.open ||= Boolean(filter);
      this.answer.replaceChildren(element("p", "error", filter ? "The filter cannot be read." : error.message));
      app.say(error.message);
    } finally {
      if (request === this.request) this.answer.removeAttribute("aria-busy");
    }
  }

  draw(answer) {
    const { threshold, matches } = answer;
    const most = Math.max(matches.at(-1)?.distance ?? 0, 1.4 * (threshold ?? 0)) || 1;
    for (const match of matches) if (match.distance < 1e-6 * most) match.distance = 0; // rounding of float32
    const [said, ...drawn] = answerOf(this.app.status, answer, Boolean(this.params.where));
    this.app.say(said);
    return [element("header", "", ...drawn), this.cards(matches, { threshold, most })];
  }

  cards(items, options) {
    return element("ol", "cards", ...items.map((item) => {
      const note = Object.entries(item.metadata ?? {}).slice(0, 3).map(([name, value]) => `${name} ${value}`).join(" · ");
      const actions = [["Find similar", () => this.start({ id: item.id })]];
      return element("li", "", this.app.card(item, { ...options, note, actions }));
    }));
  }

  // Return the first items that the filter selects, or some of the whole catalog, to start from.
  async browse(where, signal) {
    const { items } = this.app.status;
    const all = where || items <= MOST;
    const places = all ? [-1] : [...Array(SOME).keys()].map((at) => Math.floor((items * at) / SOME) - 1);
    const get = (after) => this.app.api.get("items", { where, after, limit: all ? MOST : 1 }, signal);
    const pages = await Promise.all(places.map(get));
    const found = new Map(pages.flatMap((page) => page.items).map((item) => [item.id, item])); // each once
    const first = pages[0].next !== null && where ? `Start from one of the first ${MOST} selected items` : "Start from an item";
    const title = found.size ? first : "The filter selects no item";
    this.app.say(title);
    return [element("h2", "", title), this.cards([...found.values()], {})];
  }
}

export const mount = (root, app) => new Find(root, app);
