// The parts of the map that load what is in view from the service: tiles of items, thumbnails, colors and names.

import { Names } from "./map/map_names.js";
import { FILL, PLAIN, Scene, classColor, oklch } from "./map/map_picture.js";

const HUES = 1009; // colors of classes
const SHADES = 255; // colors of numbers
const VALUES = 12; // colors of texts; the next one is of all others
const NONE = 0xffffffff; // color of an item without a value, in a tile
const CELLS = 64; // of density, per side of a tile
const PER_SIDE = 16; // items along the side of a full tile
const REQUESTS = 6; // at the same time
const SHEET = { side: 64, columns: 8, parts: 4, most: 160 };
const PHOTOS = 500; // single photos to keep
const SHARP = 84; // side in device pixels from which on photos are loaded one by one
const APART = 112; // CSS pixels between the photos on the whole map, at least
const CROWDED = 0.72; // side of the square of which one thumbnail is shown, in sides of a thumbnail
const ROOM = 40_000; // more items than these do not make thumbnails smaller

// Function that runs at most so many requests at the same time; `make` returns a promise.
function limited(most) {
  let busy = 0;
  return (make) => {
    if (busy >= most) return false;
    busy += 1;
    make().finally(() => (busy -= 1));
    return true;
  };
}

// The items that are loaded. It stands for the view and the grid of a report's map.
export class LiveView {
  constructor({ n, version, levels }, api, onLoad) {
    Object.assign(this, { version, levels, api, onLoad, color: "class", tiles: new Map(), keys: [], queue: new Set(), state: null });
    this.positions = new Float32Array(2 * n);
    this.kinds = new Uint32Array(n); // indices into the palette
    this.slots = new Uint32Array(n); // the order of drawing: the items of large tiles last
    this.rise = new Uint8Array(n); // level from which on an item is the first of a square
    this.home = new Uint32Array(n); // number of the tile of an item, from 1; 0 if it is not loaded
    this.place = new Uint16Array(n); // of an item in its tile
    this.found = new Uint32Array(n);
    this.pinned = new Set(); // items to show at any zoom
    this.near = new Map(); // item -> its neighbors
    this.start = limited(REQUESTS);
    this.onLost = () => {};
    this.grid = this;
    this.setLegend({ kind: "class" });
    for (let z = Math.min(levels, 3) - 1; z >= 0; z--) { // what is seen first
      for (let place = 0; place < 4 ** z; place++) this.queue.add(`${z}/${place % 2 ** z}/${place >> z}`);
    }
  }

  neighborsOf(i) {
    return this.near.get(i) ?? [];
  }

  // Return the tiles in a rectangle, large ones first, down to those whose items are `apart` device pixels from each other if
  // they are full. What is missing is requested, and named in `state`.
  covering(left, top, right, bottom, scale, apart) {
    const level = Math.log2(scale / (PER_SIDE * apart));
    const [found, missing] = [[], []];
    const visit = (z, x, y) => {
      const side = 2 ** -z;
      if (x * side > right || (x + 1) * side < left || y * side > bottom || (y + 1) * side < top) return;
      const tile = this.tiles.get(`${z}/${x}/${y}`);
      if (tile) found.push(tile);
      else missing.push(`${z}/${x}/${y}`);
      if (!tile?.more || z + 1 > level) return;
      for (let child = 0; child < 4; child++) visit(z + 1, 2 * x + (child & 1), 2 * y + (child >> 1));
    };
    visit(0, 0, 0);
    for (const key of missing) {
      this.queue.delete(key); // to the end
      this.queue.add(key);
    }
    this.state = missing.length ? missing : null;
    return found.sort((a, b) => a.z - b.z);
  }

  // Return the items in a rectangle that are shown at a scale; the next call reuses the array.
  within(left, top, right, bottom, scale, big) {
    const { positions, found, pinned } = this;
    let count = 0;
    const add = (i) => {
      const [x, y] = [positions[2 * i], positions[2 * i + 1]];
      if (x >= left && x <= right && y >= top && y <= bottom) found[count++] = i;
    };
    for (const { rows } of this.covering(left, top, right, bottom, scale, this.scene.apart(scale, big))) {
      for (const i of rows) if (!pinned.size || !pinned.has(i)) add(i);
    }
    pinned.forEach(add);
    return found.subarray(0, count);
  }

  hasMore(missing) {
    return missing.some((key) => this.tiles.has(key));
  }

  // Request what is missing, the latest first.
  load() {
    for (const key of [...this.queue].reverse()) {
      if (this.tiles.has(key)) this.queue.delete(key);
      else if (this.start(() => this.fetch(key).then((tile) => this.keep(tile), () => this.rest()).finally(this.onLoad))) {
        this.queue.delete(key);
      } else break;
    }
    if (this.queue.size > 500) this.queue.clear(); // what is in view is requested again
  }

  // After an error: the map may have changed. Do not request again at once.
  rest() {
    this.onLost();
    return new Promise((done) => setTimeout(done, 2000));
  }

  async fetch(key, color = this.color) {
    const content = await this.api.bytes(`map/tiles/${this.version}/${key}`, { color });
    const [, k, c, total, more] = new Uint32Array(content, 0, 5);
    let at = 20;
    const take = (Type, count) => {
      at += count * Type.BYTES_PER_ELEMENT;
      return new Type(content, at - count * Type.BYTES_PER_ELEMENT, count);
    };
    const [rows, places, kinds] = [take(Uint32Array, k), take(Float32Array, 2 * k), take(Uint32Array, k)];
    const [counts, colors, cells] = [take(Uint32Array, c), take(Uint32Array, c), take(Uint16Array, c)];
    const [z, x, y] = key.split("/").map(Number);
    return { key, z, x, y, color, total, more: more > 0, rows, places, kinds, counts, colors, cells, rise: take(Uint8Array, k) };
  }

  keep(tile) {
    if (tile.color !== this.color || this.tiles.has(tile.key)) return;
    const number = this.keys.push(tile.key);
    this.tiles.set(tile.key, tile);
    tile.rows.forEach((i, at) => {
      this.put(i, tile.places[2 * at], tile.places[2 * at + 1]);
      this.kinds[i] = this.kindOf(tile.kinds[at]);
      this.slots[i] = ((31 - tile.z) << 16) + (65535 - Math.min(at, 65535));
      this.rise[i] = tile.rise[at];
      this.home[i] = number;
      this.place[i] = at;
    });
  }

  put(i, x, y) {
    [this.positions[2 * i], this.positions[2 * i + 1]] = [x, y];
  }

  // Load the tiles of another coloring, then drop all others.
  async recolor(color, legend) {
    const before = this.color;
    this.color = color;
    const recent = [...this.tiles.keys()].slice(-150);
    let tiles;
    try {
      tiles = await Promise.all(recent.map((key) => this.fetch(key, color)));
    } catch (error) {
      if (this.color === color) this.color = before;
      throw error;
    }
    if (this.color !== color) return false;
    this.setLegend(legend);
    this.tiles.clear();
    this.home.fill(0);
    this.keys = [];
    tiles.forEach((tile) => this.keep(tile));
    return true;
  }

  setLegend({ kind }) {
    this.count = { class: HUES, outcome: 3, text: VALUES + 1, number: SHADES }[kind];
    this.none = kind === "outcome" ? 2 : this.count;
  }

  // Return the index into the palette; the last one is of items without a value.
  kindOf(color) {
    return color === NONE ? this.none : color % this.count;
  }
}

// Thumbnails: sheets of a tile's items when there are many, single photos when they are large or few. It stands for the sheets
// of a report's map. What the page shows of an item is loaded with them.
export class LiveSheets {
  constructor(view, api) {
    Object.assign(this, { view, api, sheets: new Map(), photos: new Map(), about: new Map(), wanted: [], unknown: new Set() });
    this.start = limited(2);
    this.startPhoto = limited(REQUESTS);
    this.onLoad = () => {};
  }

  // Return the part of a bitmap with item i, null if it is not loaded yet, or false if there is none.
  peek(i, side = 0, alone = true) {
    const photo = this.photos.get(i);
    if (alone || side >= SHARP || !this.view.home[i]) {
      if (photo) return photo.part;
      this.wanted.push([this.photos, i]);
      if (alone) return null;
    }
    const [part, at] = [Math.floor(this.view.place[i] / SHEET.columns ** 2), this.view.place[i] % SHEET.columns ** 2];
    if (part >= SHEET.parts) return false; // of more items at one spot than can be told apart
    const key = `${this.view.keys[this.view.home[i] - 1]}.webp?part=${part}`;
    const sheet = this.sheets.get(key);
    if (sheet?.bitmap) {
      this.sheets.delete(key);
      this.sheets.set(key, sheet); // most recently used last
      const [x, y] = [(at % SHEET.columns) * SHEET.side, Math.floor(at / SHEET.columns) * SHEET.side];
      if (side < SHARP) return { bitmap: sheet.bitmap, x, y, side: SHEET.side };
    }
    if (side < SHARP && this.view.home[i] && !sheet) this.wanted.push([this.sheets, key]);
    return sheet?.failed ? false : null;
  }

  draw(context, { bitmap, x, y, side }, i, left, top, width) {
    context.drawImage(bitmap, x, y, side, side, left, top, width, width);
  }

  // Start what was requested since the last call; older requests are dropped.
  loadWanted() {
    for (const [kept, key] of this.wanted) {
      if (kept.has(key)) continue;
      if (kept === this.photos && !this.about.has(key)) this.unknown.add(key);
      else if (kept === this.photos) this.startPhoto(() => this.loadPhoto(this.about.get(key)));
      else this.start(() => this.load(kept, key, `map/sheets/${this.view.version}/${key}&side=${SHEET.side}`, SHEET.most));
    }
    this.wanted.length = 0;
    this.view.load();
    if (this.unknown.size && !this.asking) this.learn([...this.unknown].slice(0, 200));
  }

  async learn(rows) {
    this.asking = true;
    rows.forEach((row) => this.unknown.delete(row));
    const found = await this.api.get("map/rows", { rows: rows.join(), version: this.view.version }).catch(() => []);
    for (const item of found) this.note(item);
    this.asking = false;
    this.onLoad();
  }

  note(item) {
    this.about.set(item.row, item);
    this.view.put(item.row, item.x, item.y);
    if (this.about.size > 20_000) this.about.delete(this.about.keys().next().value);
  }

  // Return what the page shows of an item.
  async learned(i) {
    if (!this.about.has(i)) await this.learn([i]);
    return this.about.get(i) ?? { row: i, id: `item ${i}`, product: "", metadata: {}, path: "", has_image: false, x: 0.5, y: 0.5 };
  }

  async loadPhoto({ row, id, has_image: there }) {
    if (there) await this.load(this.photos, row, this.api.thumbnail(id), PHOTOS);
    else this.photos.set(row, { part: false });
  }

  load(kept, key, address, most) {
    const entry = { bitmap: null, part: null, failed: false };
    kept.set(key, entry);
    for (const [old, { bitmap }] of kept) {
      if (kept.size <= most) break;
      if (!bitmap) continue;
      bitmap.close();
      kept.delete(old);
    }
    const decoded = fetch(address).then((response) => (response.ok ? response.blob() : Promise.reject(response)));
    entry.promise = decoded.then(createImageBitmap).then(
      (bitmap) => {
        if (this.ended) return bitmap.close();
        const side = Math.min(bitmap.width, bitmap.height);
        entry.part = { bitmap, x: (bitmap.width - side) / 2, y: (bitmap.height - side) / 2, side };
        entry.bitmap = bitmap;
        return undefined;
      },
      () => Object.assign(entry, { failed: true, part: false }),
    ).finally(() => this.onLoad());
    return entry.promise;
  }

  // Free the memory of what was loaded.
  end() {
    this.ended = true;
    for (const kept of [this.sheets, this.photos]) {
      for (const { bitmap } of kept.values()) bitmap?.close();
      kept.clear();
    }
  }

  // Draw item i on a separate canvas as soon as it is loaded.
  async show(canvas, i, width) {
    const pixels = Math.round(width * Math.min(2, devicePixelRatio || 1));
    canvas.width = canvas.height = pixels;
    canvas.dataset.image = i;
    const item = await this.learned(i);
    if (!this.photos.has(i)) await this.loadPhoto(item);
    await this.photos.get(i)?.promise;
    const part = this.photos.get(i)?.part;
    if (!part || canvas.dataset.image !== String(i)) return;
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    this.draw(context, part, i, 0, 0, pixels);
  }
}

// State of the drawing of a large map: density under the dots, a few photos among them, and the colors of a legend.
export class LiveScene extends Scene {
  constructor(atlas) {
    super(atlas);
    Object.assign(this, { smallest: atlas.n > 5000 ? 24 : 13, largest: 176, strict: false, photo: 34, dotted: 0, legend: { kind: "class" } });
    atlas.view.scene = this;
  }

  colors(dark, faint) {
    const { kind } = this.legend;
    if (kind === "number") return [...Array.from({ length: SHADES }, (_, step) => shade(step / (SHADES - 1), dark)), faint];
    const count = kind === "class" ? HUES : VALUES;
    return [...Array.from({ length: count }, (_, number) => classColor(number, dark)), faint, faint];
  }

  kindsOf() {
    return this.atlas.view.kinds;
  }

  room(scale) {
    return Math.min(this.largest * this.ratio, (FILL * scale) / Math.sqrt(Math.min(ROOM, this.atlas.n)));
  }

  // Return the distance of items in a full tile, in device pixels.
  apart(scale, big) {
    return big ? Math.max(14 * this.ratio, 0.4 * this.side(scale)) : 8 * this.ratio;
  }

  // One thumbnail in each square of the map, so that few overlap; the others are dots until the map is closer.
  pictured(scale, big) {
    const { view, camera } = this.atlas;
    if (scale > 0.9 * camera.closest() * this.ratio) return super.pictured(scale, big);
    const level = Math.floor(Math.log2(scale / (big ? CROWDED * this.side(scale) : APART * this.ratio)));
    return (i) => this.shown[i] === PLAIN && (view.rise[i] <= level || (big && view.pinned.has(i)));
  }

  // Draw the density: of each tile whose items are not all shown, the cells in their most frequent colors.
  paintGround(stamps, left, top, scale) {
    super.paintGround(stamps);
    const { view, selected } = this.atlas;
    const { width, height } = stamps.image;
    const box = [left / scale, top / scale, (left + width) / scale, (top + height) / scale];
    const tiles = view.covering(...box, scale, this.apart(scale, this.thumbnails(scale)));
    const deepest = tiles.at(-1)?.z;
    for (const tile of tiles) {
      const side = 2 ** -tile.z * scale;
      if (side / CELLS > 8 * this.ratio) continue;
      const edge = (at, from) => Math.round(at * side - from);
      if (tile.z) this.fill(stamps, edge(tile.x, left), edge(tile.y, top), edge(tile.x + 1, left), edge(tile.y + 1, top), this.ground);
      if (tile.z < deepest - 1) continue; // covered by those that follow
      const most = Math.log1p(Math.max(2, (6 * this.atlas.n) / 4 ** tile.z / CELLS ** 2));
      tile.cells.forEach((cell, at) => {
        const [x, y] = [tile.x + (cell % CELLS) / CELLS, tile.y + Math.floor(cell / CELLS) / CELLS];
        const strength = (selected ? 0.16 : 0.62) * Math.min(1, 0.12 + Math.log1p(tile.counts[at]) / most);
        const color = mixed(this.ground, this.palette[view.kindOf(tile.colors[at])], Math.round(256 * strength));
        this.fill(stamps, edge(x, left), edge(y, top), edge(x + 1 / CELLS, left), edge(y + 1 / CELLS, top), color);
      });
    }
  }

  fill({ pixels, image: { width, height } }, left, top, right, bottom, color) {
    const [from, to] = [Math.max(0, left), Math.min(width, right)];
    if (from >= to) return;
    for (let y = Math.max(0, top); y < Math.min(height, bottom); y++) pixels.fill(color, y * width + from, y * width + to);
  }
}

// Return a color of the ramp of numbers, 0 to 1: from violet over green to yellow.
export function shade(part, dark) {
  return oklch((dark ? 0.5 : 0.4) + part * (dark ? 0.4 : 0.45), 0.13, 5.1 - 3.3 * part);
}

function mixed(ground, color, share) {
  const even = (ground & 0xff00ff) + ((((color & 0xff00ff) - (ground & 0xff00ff)) * share) >> 8);
  const green = (ground & 0x00ff00) + ((((color & 0x00ff00) - (ground & 0x00ff00)) * share) >> 8);
  return 0xff000000 | (even & 0xff00ff) | (green & 0x00ff00);
}

// Names of the classes around the place in view, at spots from the service.
export class LiveNames extends Names {
  constructor(atlas) {
    super(atlas);
    Object.assign(this, { every: [], texts: new Map(), x: 0, y: 0, reach: 0 });
  }

  async load(api) {
    for (const [text, x, y, count, number] of await api.get("map/names")) {
      this.texts.set(number, text);
      this.every.push({ number, x, y, count });
    }
    this.forget();
  }

  isDue(left, top, scale) {
    const { x, y } = this.atlas.camera;
    return this.scale !== scale || Math.max(Math.abs(x - this.x), Math.abs(y - this.y)) > this.reach;
  }

  place(scale) {
    const { x, y, width, height, zoom } = this.atlas.camera;
    const reach = Math.max(width, height) / zoom;
    const only = this.atlas.searched;
    Object.assign(this, { x, y, reach: reach / 2 });
    this.spots = this.every.filter((spot) => {
      return Math.max(Math.abs(spot.x - x), Math.abs(spot.y - y)) < reach && (only === null || spot.number === only);
    });
    super.place(scale);
    const { scene } = this.atlas;
    const below = scene.thumbnails(scale) ? (0.6 * scene.side(scale) + 9 * scene.ratio) / scale : 0; // a photo
    for (const name of this.placed) name.y += below;
  }

  text(number) {
    const letters = [...this.texts.get(number)];
    return letters.length > 26 ? `…${letters.slice(-25).join("")}` : letters.join("");
  }
}

export { HUES, VALUES };
