// The page: header, tabs, routing by hash, messages, and the sheet of an item. A tab is a module with a function
// `mount(root, app)`, which returns {show(params), hide()}; params are the URLSearchParams of the hash.

import * as api from "./api.js";
import { card, counted, element } from "./cards.js";
import { openSheet } from "./sheet.js";

const MODULES = { find: "./find.js", map: "./map_tab.js", review: "./review.js" };
const RETRY = 700; // milliseconds, while the catalog is loaded

const one = (selector) => document.querySelector(selector);
const tabs = {}; // name -> {root, ready: promise of {show, hide}}
let current = null;

const app = {
  api,
  status: null,
  // Return a hash such as "#find?id=a"; empty values are left out.
  hash: (tab, params) => `#${tab}${api.query(params)}`,
  // Go to a hash, with a new entry in the history unless `replace` is set.
  go(hash, { replace = false } = {}) {
    const target = hash.startsWith("#") ? hash : `#${hash}`;
    if (target === location.hash) return;
    history[replace ? "replaceState" : "pushState"](null, "", target);
    (replace ? route : arrive)();
  },
  // Write the place in the current tab into the address, also for the way back to the tab.
  keep(hash) {
    history.replaceState(null, "", hash);
    current.hash = location.hash;
  },
  // Tell screen readers.
  say: (text) => (one(".live").textContent = text),
  // Show an error, or remove it.
  fail(error) {
    one(".banner").hidden = !error;
    one(".banner p").textContent = error ? error.message : "";
  },
  card: (item, options = {}) => card(item, { onOpen: () => app.openItem(item.id), ...options }),
  openItem: (id) => openSheet(one(".sheet"), app, id),
};

function mounted(name) {
  if (tabs[name]) return tabs[name];
  const link = one(`[data-tab="${name}"]`);
  const root = element("section", `tab ${name}`);
  root.hidden = true;
  root.ariaLabel = link.textContent;
  one("main").append(root);
  const missing = (error) => {
    console.error(error);
    root.replaceChildren(element("p", "loading", `This view cannot be shown: ${error.message}`));
    return { show() {}, hide() {} };
  };
  const ready = import(MODULES[name]).then((module) => module.mount(root, app)).catch(missing);
  return (tabs[name] = { root, link, ready, hash: `#${name}` });
}

async function route() {
  const [named, params = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const name = Object.hasOwn(MODULES, named) ? named : "find";
  const tab = mounted(name);
  if (current && current !== tab) {
    current.root.hidden = true;
    current.link.removeAttribute("aria-current");
    current.link.href = current.hash; // the way back to what it shows
    current.ready.then((view) => view.hide());
  }
  current = Object.assign(tab, { hash: location.hash || "#find" });
  tab.root.hidden = false;
  tab.link.setAttribute("aria-current", "page");
  tab.link.href = `#${name}`;
  document.title = `${tab.link.textContent} – ${one("h1").textContent}`;
  const view = await tab.ready;
  if (current === tab && tab.hash === (location.hash || "#find")) view.show(new URLSearchParams(params));
}

function arrive() {
  app.fail(null);
  one(".sheet").close();
  route();
}

function drawHead({ items, products, model, address }) {
  one("h1 bdi").textContent = address.split(/[/#\\]/).filter(Boolean).at(-1) ?? "Catalog";
  one("h1").title = address;
  const counts = `${counted(items, "item", "items")} · ${counted(products, "product", "products")}`;
  const by = element("span", "model", model.sha ? " · model " : " · ", element("bdi", "", model.name), `, ${model.dim}-d`);
  one(".about").replaceChildren(counts, by);
}

async function start() {
  one(".banner button").onclick = () => app.fail(null);
  one(".skip").onclick = () => {
    one("main").focus();
    return false; // the hash is the view
  };
  while (!app.status) {
    try {
      app.status = await api.get("status");
    } catch (error) {
      one(".loading").textContent = error.status === 503 ? "Loading the catalog …" : error.message;
      await new Promise((done) => setTimeout(done, RETRY));
    }
  }
  one(".loading").remove();
  drawHead(app.status);
  mounted("find"); // takes photos on every tab
  window.onpopstate = arrive; // also when the hash is changed by hand
  arrive();
}

start();
