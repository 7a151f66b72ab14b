// The page: two files and arrays go in, tables of outputs and timings come out. What a file is, is said by the modules
// beside this one; here is what a person sees and does.

import * as ort from "./runtime/ort.wasm.min.mjs";
import { count, difference, fromLists, random, readNpy } from "./arrays.mjs";
import { readGraph } from "./graph.mjs";
import { open } from "./session.mjs";

// Several threads need memory that they share, which browsers give to isolated pages only.
const threads = globalThis.crossOriginIsolated ? navigator.hardwareConcurrency : 1;
ort.env.wasm.numThreads = threads;

const $ = (id) => document.getElementById(id);
const state = { graph: null, about: null, data: null, session: null, opened: 0 };

$("graph").addEventListener("change", () => guarded("graph", readGraphFile));
$("data").addEventListener("change", () => guarded("weights", readDataFile));
$("run").addEventListener("click", () => guarded("run", runAll));
say("Choose a graph.");

async function guarded(part, work) {
  $("run").disabled = true;
  try {
    await work();
  } catch (error) {
    say(`${part}: ${error.message ?? error}`, true);
  }
  $("run").disabled = state.about === null || (state.about.data !== null && state.data === null);
}

async function readGraphFile() {
  Object.assign(state, { graph: null, about: null, session: null });
  show("outputs", []);
  show("timings", []);
  show("inputs", []);
  $("about").textContent = "";
  const bytes = await bytesOf("graph");
  state.about = readGraph(bytes);
  state.graph = bytes;
  const { data, outputs } = state.about;
  $("about").textContent = `Gives ${outputs.map((output) => `${output.name} ${shown(output)}`).join(", ")}. ` +
    (data === null ? "Its weights are inside." : `Its weights: ${data.file}, at least ${data.bytes.toLocaleString("en")} bytes.`);
  offerInputs();
  askForNext();
}

async function readDataFile() {
  Object.assign(state, { data: null, session: null });
  state.data = await bytesOf("data");
  askForNext();
}

function askForNext() {
  const missing = state.about === null ? "a graph" : state.about.data !== null && state.data === null ? state.about.data.file : null;
  say(missing === null ? "Ready." : `Choose ${missing}.`);
}

function offerInputs() {
  const names = new Set(state.about.inputs.flatMap((input) => input.dims.filter((size) => typeof size !== "number")));
  $("sizes").replaceChildren(
    ...[...names].map((name) => {
      const label = element("label", `Size of ${name ?? "dimensions without a name"} `);
      const box = element("input", "", { type: "number", min: 1, value: 1, step: 1 });
      box.dataset.size = String(name);
      label.append(box);
      return label;
    }),
  );
  show("inputs", state.about.inputs.map((input) => {
    const file = element("input", "", { type: "file", accept: ".npy,.json" });
    file.dataset.input = input.name;
    file.setAttribute("aria-label", `values of ${input.name}`);
    return [input.name, input.type, `[${input.dims.map((size) => size ?? "?").join(", ")}]`, file];
  }));
}

async function runAll() {
  say("Opening …");
  await painted();
  if (state.session === null) {
    const before = performance.now();
    state.session = await open(ort, state.graph, state.data);
    state.opened = performance.now() - before;
  }
  const inputs = {};
  for (const input of state.about.inputs) inputs[input.name] = await inputValues(input);
  const times = Math.min(1000, Math.max(1, Number($("times").value) || 1));
  say(`Running ${times} times …`);
  await painted();
  const taken = [];
  let last;
  for (let number = 0; number < times; number++) {
    last = await state.session.run(inputs);
    taken.push(last.milliseconds);
  }
  const expected = await expectedOutputs();
  show("outputs", Object.entries(last.outputs).map(([name, output]) => row(name, output, expected[name])));
  const sorted = [...taken].sort((a, b) => a - b);
  const cells = [state.opened, taken[0], sorted[Math.floor((sorted.length - 1) / 2)], sorted[0], sorted.at(-1)];
  show("timings", [[...cells.map((value) => `${value.toFixed(2)} ms`), String(times), String(threads)]]);
  say("Done.");
}

async function inputValues(input) {
  const file = document.querySelector(`[data-input="${CSS.escape(input.name)}"]`).files[0];
  if (file !== undefined) return named(`input ${input.name}`, () => arrayOf(file, input.type));
  const dims = input.dims.map((size) =>
    typeof size === "number" ? size : Number(document.querySelector(`[data-size="${CSS.escape(String(size))}"]`).value),
  );
  if (!dims.every((size) => Number.isInteger(size) && size >= 0)) throw new Error("a size is no whole number");
  return random(input.type, dims, Number($("seed").value) || 0);
}

async function expectedOutputs() {
  const file = $("expected").files[0];
  if (file === undefined) return {};
  const { outputs } = state.about;
  if (file.name.endsWith(".npy")) return { [outputs[0].name]: await named("expected", () => arrayOf(file, outputs[0].type)) };
  return named("expected", async () => {
    const given = JSON.parse(await file.text());
    const known = outputs.filter((output) => output.name in given);
    if (known.length === 0) throw new Error(`no output is called ${Object.keys(given).join(", ")}`);
    return Object.fromEntries(known.map((output) => [output.name, fromLists(given[output.name], output.type)]));
  });
}

async function arrayOf(file, type) {
  return file.name.endsWith(".npy") ? readNpy(await file.arrayBuffer()) : fromLists(JSON.parse(await file.text()), type);
}

async function named(what, work) {
  try {
    return await work();
  } catch (error) {
    throw new Error(`${what}: ${error.message}`, { cause: error });
  }
}

function row(name, output, expected) {
  const values = Array.from(output.data, Number);
  const few = values.slice(0, 4).map(short).join("  ") + (values.length > 4 ? " …" : "");
  const least = values.reduce((a, b) => Math.min(a, b), Infinity);
  const largest = values.reduce((a, b) => Math.max(a, b), -Infinity);
  const mean = values.reduce((a, b) => a + b, 0) / count(output.dims);
  const off = expected === undefined ? "–" : difference(output, expected).toExponential(2);
  return [name, output.type, `[${output.dims.join(", ")}]`, few, short(least), short(largest), short(mean), off];
}

const short = (value) => (Number.isInteger(value) ? String(value) : value.toPrecision(5));
const shown = (value) => `${value.type} [${value.dims.map((size) => size ?? "?").join(", ")}]`;
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

async function bytesOf(id) {
  const file = $(id).files[0];
  if (file === undefined) throw new Error("no file is chosen");
  return new Uint8Array(await file.arrayBuffer());
}

function show(id, rows) {
  const table = $(id);
  table.tBodies[0].replaceChildren(
    ...rows.map((cells) => {
      const line = element("tr", "");
      line.append(...cells.map((cell) => {
        const place = element("td", "");
        place.append(cell);
        return place;
      }));
      return line;
    }),
  );
  table.hidden = rows.length === 0 && id !== "inputs";
}

function say(words, fault = false) {
  $("status").textContent = words;
  $("status").classList.toggle("fault", fault);
}

function element(kind, words, more = {}) {
  const made = Object.assign(document.createElement(kind), more);
  if (words) made.textContent = words;
  return made;
}
