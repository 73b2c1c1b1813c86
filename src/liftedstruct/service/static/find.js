// Find: a photo or an item is the query, the answers are cards. The hash holds everything but the pixels of a photo.

import { button, counted, element, named, nearness, picture } from "./cards.js";
import { Crop } from "./crop.js";
import { Facets } from "./facets.js";

const PAUSE = 220; // milliseconds without a change before the photo is searched again
const HUGE = 8e6; // bytes of a photo that is scaled down before it is sent
const SIDE = 2048; // to this many pixels
const KEPT = 20; // photos for the back button
const COUNTS = [10, 20, 50, 100];

// Return a huge photo scaled down and turned upright; any other, or one that the browser cannot read, as it is.
async function light(file) {
  if (file.size <= HUGE) return file;
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = new OffscreenCanvas(Math.round(bitmap.width * scale), Math.round(bitmap.height * scale));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return await canvas.convertToBlob({ type: "image/webp", quality: 0.95 });
  } catch {
    return file;
  }
}

function fileInput(label, run) {
  const input = element("input", "unseen");
  Object.assign(input, { type: "file", accept: "image/*" });
  input.addEventListener("change", () => {
    if (input.files.length) run([...input.files]);
    input.value = "";
  });
  return [input, element("label", "button", input, label)];
}

class Find {
  constructor(root, app) {
    Object.assign(this, { root, app, photos: new Map(), params: {}, request: null, timer: 0, crop: null });
    const { items, fields, model } = app.status;
    this.photographic = Boolean(model.sha);
    this.query = element("div", "query");
    this.facets = new Facets(fields, (where) => this.change({ where }));
    this.k = element("select", "", ...COUNTS.map((count) => new Option(count, count)));
    this.k.addEventListener("change", () => this.change({ k: this.k.value }));
    this.group = element("input");
    this.group.type = "checkbox";
    this.group.addEventListener("change", () => this.change({ group: this.group.checked ? "product" : "" }));
    const options = element("p", "options", element("label", "", "Show ", this.k, " answers"), element("label", "", this.group, " one per product"));
    this.filters = element("details", "filters", element("summary", "", "Filters and options"), options, this.facets.root);
    this.filters.open = matchMedia("(min-width: 761px)").matches;
    this.answer = element("div", "answer");
    this.answer.setAttribute("aria-label", "Answers");
    this.answer.setAttribute("role", "region");
    this.drop = element("div", "dropping", element("p", "", "Drop the photo to search for it"));
    this.drop.hidden = true;
    document.body.append(this.drop);
    if (items) root.append(element("div", "controls", this.query, this.filters), this.answer);
    else root.append(this.nothing());
    this.listen();
  }

  nothing() {
    const code = element("code", "", `liftedstruct catalog add ${this.app.status.address} photos/`);
    const text = element("p", "", "Add images with ", code, " and reload this page.");
    return element("div", "empty", element("h2", "", "The catalog is empty"), text, button("primary", "Reload", () => location.reload()));
  }

  // Photos are taken from anywhere on the page, on every tab.
  listen() {
    const holds = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      this.drop.hidden = false;
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget || (this.drop.hidden = true));
    document.addEventListener("drop", (event) => {
      this.drop.hidden = true;
      if (!holds(event)) return;
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      if (!files.length) return;
      event.preventDefault();
      this.take(files);
    });
  }

  // Search for a photo that was dropped, pasted or chosen.
  take(files) {
    const { app } = this;
    const file = files.find((each) => each.type.startsWith("image/")) ?? files[0];
    if (!app.status.items) return app.fail(new Error("The catalog is empty. Add images first."));
    if (!this.photographic) return app.fail(new Error(this.reason()));
    const number = Math.max(0, ...this.photos.keys()) + 1;
    this.photos.set(number, { name: file.name || "pasted photo", url: URL.createObjectURL(file), sent: light(file) });
    for (const old of [...this.photos.keys()].slice(0, -KEPT)) {
      URL.revokeObjectURL(this.photos.get(old).url);
      this.photos.delete(old);
    }
    return app.go(app.hash("find", { ...this.kept(), photo: number }));
  }

  reason() {
    return "A photo cannot be searched: the catalog holds vectors only, without a model. Start from one of its items.";
  }

  // Return the parameters that the next query keeps.
  kept() {
    const { where, k, group } = this.params;
    return { where, k, group };
  }

  // Change parameters of the query that is shown.
  change(changed) {
    this.app.go(this.app.hash("find", { ...this.params, ...changed }), { replace: true });
  }

  similar(id) {
    this.app.go(this.app.hash("find", { ...this.kept(), id }));
    window.scrollTo({ top: 0 });
  }

  hide() {
    this.request?.abort();
    clearTimeout(this.timer);
  }

  show(params) {
    if (!this.app.status.items) return;
    const before = this.params;
    this.params = Object.fromEntries(params);
    const { id = "", photo = "", crop = "", where = "", k = "20", group = "" } = this.params;
    if (!this.query.firstChild || id !== before.id || photo !== before.photo) this.drawQuery(id, photo);
    if (this.crop && crop !== (this.crop.value ?? "").toString()) this.crop.show(crop ? crop.split(",").map(Number) : null);
    if (where !== this.facets.input.value) this.facets.show(where);
    this.k.value = COUNTS.includes(Number(k)) ? k : "20";
    this.group.checked = Boolean(group);
    clearTimeout(this.timer);
    this.request?.abort();
    const wait = crop !== (before.crop ?? "") && photo === before.photo ? PAUSE : 0; // while the box moves
    this.timer = setTimeout(() => this.search(), wait);
  }

  drawQuery(id, photo) {
    const { app } = this;
    this.crop = null;
    const leave = button("close", "×", () => app.go(app.hash("find", this.kept())));
    leave.setAttribute("aria-label", "Remove the query");
    const kept = this.photos.get(Number(photo));
    const [, choose] = fileInput(kept || id ? "Another photo" : "Choose a photo", (files) => this.take(files));
    const [camera, shoot] = fileInput("Take a photo", (files) => this.take(files));
    camera.setAttribute("capture", "environment");
    choose.classList.add("primary");
    shoot.classList.add("camera");
    const buttons = element("p", "buttons", choose, shoot);
    if (!this.photographic) {
      for (const each of [choose, shoot]) each.firstChild.disabled = true;
      buttons.append(element("span", "soft", this.reason()));
    }
    if (kept) {
      const image = element("img");
      Object.assign(image, { alt: `Query: ${kept.name}`, draggable: false });
      image.addEventListener("error", () => image.replaceWith(element("span", "missing", "The browser cannot show this photo.")));
      image.src = kept.url;
      this.crop = new Crop(image, (box) => this.change({ crop: box ? box.join(",") : "" }));
      const hint = element("p", "hint", "Drag on the photo to search a part of it.");
      this.query.replaceChildren(element("div", "shown", this.crop.root, leave), element("p", "name", named("", kept.name)), hint, buttons);
    } else if (id) {
      const shown = element("div", "shown");
      const name = named("product", id);
      this.query.replaceChildren(shown, element("p", "name", name), element("p", "name", named("id", id)), buttons);
      shown.append(leave);
      app.api.get(app.api.item(id)).then((item) => {
        shown.prepend(picture(item, 512));
        name.replaceWith(named("product", item.product || "no product"));
      }, () => shown.prepend(element("span", "picture", element("span", "missing", "no such item"))));
    } else {
      const text = this.photographic ? "Drop a photo anywhere, paste it, or choose a file." : "";
      const gone = photo ? element("p", "soft", "The photo of this address is gone: photos are never stored. Choose it again.") : null;
      this.query.replaceChildren(element("div", "zone", element("h2", "", "Find by photo"), gone, element("p", "soft", text), buttons));
    }
  }

  async search() {
    const request = new AbortController();
    this.request = request;
    const { id, photo, crop, where, k = 20, group } = this.params;
    const kept = this.photos.get(Number(photo));
    this.answer.setAttribute("aria-busy", "true");
    try {
      let drawn;
      if (kept) {
        const form = new FormData();
        form.set("image", await kept.sent, kept.name);
        for (const [name, value] of Object.entries({ k, where, crop, group_by: group })) if (value) form.set(name, value);
        drawn = this.answers(await this.app.api.post("search", form, request.signal));
      } else if (id) {
        drawn = this.answers(await this.app.api.post("search", { id, k: Number(k), where: where || null, group_by: group || null }, request.signal));
      } else {
        drawn = this.browse(await this.app.api.get("items", { where, limit: 24 }, request.signal), where);
      }
      if (request !== this.request || request.signal.aborted) return;
      this.answer.replaceChildren(...drawn);
      this.facets.fail(null);
    } catch (error) {
      if (request !== this.request || error.name === "AbortError") return;
      const filter = where && [400, 422].includes(error.status) && !/photo|image|pixels/.test(error.message);
      if (filter) {
        this.facets.fail(error.message);
        this.filters.open = true;
      }
      this.answer.replaceChildren(element("p", "error", error.message));
      this.app.say(error.message);
    } finally {
      if (request === this.request) this.answer.removeAttribute("aria-busy");
    }
  }

  cards(items, options) {
    const note = (item) => Object.entries(item.metadata ?? {}).slice(0, 2).map(([name, value]) => `${name} ${value}`).join(" · ");
    return element("ol", "cards", ...items.map((item) => {
      const actions = [["Find similar", () => this.similar(item.id)]];
      return element("li", "", this.app.card(item, { ...options, note: note(item) || null, actions }));
    }));
  }

  // Return the items that the filter selects, to start from.
  browse({ items, next }, where) {
    const list = this.cards(items, {});
    const more = button("more", "Show more", async () => {
      try {
        const page = await this.app.api.get("items", { where, after: next, limit: 24 });
        next = page.next;
        list.append(...this.cards(page.items, {}).children);
        more.hidden = next === null || next === undefined;
      } catch (error) {
        this.app.fail(error);
      }
    });
    more.hidden = next === null || next === undefined;
    const title = where ? "Items that the filter selects" : "Or start from an item";
    this.app.say(items.length ? title : "No item is selected by the filter.");
    return [element("h2", "", title), items.length ? list : element("p", "soft", "No item is selected by the filter."), more];
  }

  answers(answer) {
    const { matches } = answer;
    if (!matches.length) {
      const text = this.params.where ? "No other item is selected by the filter." : "There is no other item in the catalog.";
      this.app.say(text);
      return [element("h2", "", "Nothing to compare with"), element("p", "soft", text)];
    }
    const threshold = answer.threshold ?? null;
    const most = Math.max(matches.at(-1).distance, 1.4 * (threshold ?? 0)) || 1;
    const [first] = matches;
    const badge = { match: ["right", "✓ match"], "no match": ["beyond", "– no match"] }[answer.verdict];
    const title = element("h2", "", answer.verdict === "no match" ? "No match" : named("", first.product || first.id));
    if (badge && answer.verdict === "match") title.append(" ", element("span", `badge ${badge[0]}`, badge[1]));
    const lines = [element("p", "verdict", ...this.verdict(answer, first, threshold)), this.why(answer)];
    this.app.say(`${title.textContent}: ${counted(matches.length, "answer", "answers")}, nearest at distance ${nearness(first.distance)}`);
    return [element("header", "", title, ...lines), this.cards(matches, { threshold, most })];
  }

  verdict({ margin, verdict }, first, threshold) {
    const product = named("", first.product || first.id);
    const at = `at distance ${nearness(first.distance)}`;
    const rate = this.app.status.calibration?.requested;
    const learned = rate ? `, calibrated for a false-match rate of ${100 * rate} %` : "";
    const parts = [verdict === "no match" ? element("span", "", "The nearest image, ", product, `, is ${at}, `) : `The nearest image is ${at}`];
    if (verdict) parts.push(`${verdict === "match" ? ", within" : "beyond"} the threshold of ${nearness(threshold)}${learned}. `);
    else parts.push(". ");
    parts.push(margin === null ? "No other product is among the nearest images." : `The next other product is ${nearness(margin)} farther.`);
    if (!verdict) {
      const code = element("code", "", `liftedstruct catalog calibrate ${this.app.status.address}`);
      parts.push(" Whether that is a match is not known yet: run ", code, ".");
    }
    return parts;
  }

  why({ milliseconds }) {
    const { items, model } = this.app.status;
    const exact = `exact search over ${counted(items, "item", "items")}`;
    const time = milliseconds === undefined ? "" : `, ${milliseconds < 10 ? milliseconds.toFixed(1) : Math.round(milliseconds)} ms`;
    const text = `Nearest by Euclidean distance in the ${model.dim}-d embedding of `;
    return element("p", "why", text, element("bdi", "", model.name), `; ${exact}${time}.`);
  }
}

export function mount(root, app) {
  const find = new Find(root, app);
  return { show: (params) => find.show(params), hide: () => find.hide() };
}
