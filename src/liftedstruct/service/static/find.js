// Find: a photo or an item is the query, the answers are cards. The hash holds everything but the pixels of a photo.

import { answerOf } from "./answer.js";
import { button, control, element, named, picture } from "./cards.js";
import { Crop } from "./crop.js";
import { Facets } from "./facets.js";

const PAUSE = 220; // milliseconds without a change before the photo is searched again
const HUGE = 8e6; // bytes of a photo that is scaled down before it is sent
const SIDE = 2048; // to this many pixels
const KEPT = 20; // photos for the back button
const PAGE = 24; // items to start from
const COUNTS = [10, 20, 50, 100];

// Return a huge photo scaled down and upright; any other, and one that the browser cannot read, as it is.
async function prepared(file) {
  if (file.size <= HUGE) return file;
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = new OffscreenCanvas(Math.ceil(bitmap.width * scale), Math.ceil(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return await canvas.convertToBlob({ type: "image/webp", quality: 0.95 });
  } catch {
    return file;
  }
}

class Find {
  constructor(root, app) {
    Object.assign(this, { root, app, photos: new Map(), params: {}, request: null, timer: 0, crop: null });
    const { items, fields, model, address } = app.status;
    const vectors = "A photo cannot be searched: the catalog holds vectors only, without a model. Start from an item.";
    this.refusal = items ? (model.sha ? "" : vectors) : "The catalog is empty. Add images first.";
    this.listen();
    if (!items) {
      const code = element("code", "", `liftedstruct catalog add ${address} photos/`);
      const text = element("p", "", "Add images with ", code, ", then reload this page.");
      const reload = button("button primary", "Reload", () => location.reload());
      root.append(element("div", "empty", element("h2", "", "The catalog is empty"), text, reload));
      return;
    }
    this.query = element("div", "query");
    this.facets = new Facets(fields, (where) => this.change({ where }));
    const k = () => this.change({ k: this.k.value });
    this.k = control("select", { on: { change: k } }, ...COUNTS.map((count) => new Option(count, count)));
    const group = () => this.change({ group: this.group.checked ? "product" : "" });
    this.group = control("input", { type: "checkbox", on: { change: group } });
    const labels = [element("label", "", "Show ", this.k, " answers"), element("label", "", this.group, "one per product")];
    const options = element("p", "options", ...labels);
    this.filters = element("details", "filters", element("summary", "", "Filters and options"), options, this.facets.root);
    this.filters.open = matchMedia("(min-width: 761px)").matches;
    this.answer = control("div", { className: "answer", role: "region", label: "Answers" });
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
    const number = Math.max(0, ...photos.keys()) + 1;
    photos.set(number, { name: file.name, url: URL.createObjectURL(file), sent: prepared(file) });
    for (const old of [...photos.keys()].slice(0, -KEPT)) {
      URL.revokeObjectURL(photos.get(old).url);
      photos.delete(old);
    }
    return this.start({ photo: number });
  }

  // Start another query with the filter and the options of this one.
  start(query) {
    const { where, k, group } = this.params;
    this.app.go(this.app.hash("find", { where, k, group, ...query }));
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
    const change = () => this.take(input.files);
    const input = control("input", { className: "unseen", type: "file", accept: "image/*", disabled: this.refusal, on: { change } });
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
      const failed = () => image.replaceWith(element("span", "missing", "The browser cannot show this photo."));
      const image = control("img", { alt: `Query: ${photo.name}`, draggable: false, src: photo.url, on: { error: failed } });
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
      const text = element("p", "soft", this.refusal || gone || "Drop a photo anywhere, paste it, or choose a file.");
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
        body.set("image", await kept.sent, kept.name);
        for (const [name, value] of Object.entries({ k, where, crop, group_by })) if (value) body.set(name, value);
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
      this.answer.replaceChildren(element("p", "error", error.message));
      app.say(error.message);
    } finally {
      if (request === this.request) this.answer.removeAttribute("aria-busy");
    }
  }

  draw(answer) {
    const [said, ...drawn] = answerOf(this.app.status, answer, Boolean(this.params.where));
    this.app.say(said);
    const { threshold = null, matches } = answer;
    const most = Math.max(matches.at(-1)?.distance ?? 0, 1.4 * (threshold ?? 0)) || 1;
    return [element("header", "", ...drawn), this.cards(matches, { threshold, most })];
  }

  cards(items, options) {
    return element("ol", "cards", ...items.map((item) => {
      const note = Object.entries(item.metadata ?? {}).slice(0, 3).map(([name, value]) => `${name} ${value}`).join(" · ");
      const actions = [["Find similar", () => this.start({ id: item.id })]];
      return element("li", "", this.app.card(item, { ...options, note, actions }));
    }));
  }

  // Return the items that the filter selects, to start from.
  async browse(where, signal) {
    let page = await this.app.api.get("items", { where, limit: PAGE }, signal);
    const list = this.cards(page.items, {});
    const more = button("button more", "Show more", async () => {
      try {
        page = await this.app.api.get("items", { where, after: page.next, limit: PAGE });
        list.append(...this.cards(page.items, {}).children);
        more.hidden = page.next === null;
      } catch (error) {
        this.app.fail(error);
      }
    });
    more.hidden = page.next === null;
    const title = page.items.length ? (where ? "Start from a selected item" : "Start from an item") : "No item is selected";
    this.app.say(title);
    return [element("h2", "", title), list, more];
  }
}

export function mount(root, app) {
  return new Find(root, app);
}
