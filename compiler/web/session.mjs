// A session of ONNX Runtime's WebAssembly over two files, in a browser and in Node alike.

import { readGraph } from "./graph.mjs";

export class SessionError extends Error {}

// ort: the module onnxruntime-web; graph, data: Uint8Array, data null where there is no second file.
// → {about: what readGraph says, run: (inputs by name) → {outputs by name, milliseconds}}
export async function open(ort, graph, data) {
  const about = readGraph(graph);
  if (about.data !== null && data === null) {
    throw new SessionError(`the graph's weights lie in ${about.data.file}: choose that file too`);
  }
  if (about.data !== null && data.length < about.data.bytes) {
    throw new SessionError(
      `the file of weights has ${data.length} bytes, but the graph reads ${about.data.bytes}: it is cut off, or of another model`,
    );
  }
  const externalData = about.data === null ? [] : [{ path: about.data.file, data }];
  const session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"], externalData });
  return { about, run: (inputs) => run(ort, session, about, inputs) };
}

async function run(ort, session, about, inputs) {
  const feeds = {};
  for (const input of about.inputs) {
    const given = inputs[input.name];
    checkInput(input, given);
    feeds[input.name] = new ort.Tensor(given.type, given.data, given.dims);
  }
  const before = performance.now();
  const results = await session.run(feeds);
  const milliseconds = performance.now() - before;
  const outputs = {};
  for (const { name } of about.outputs) {
    const { type, dims, data } = results[name];
    outputs[name] = { type, dims: [...dims], data };
  }
  return { outputs, milliseconds };
}

// input: as readGraph gives it.
export function checkInput(input, given) {
  const fits =
    given.dims.length === input.dims.length &&
    input.dims.every((size, axis) => typeof size !== "number" || size === given.dims[axis]);
  if (given.type !== input.type || !fits) {
    throw new SessionError(
      `input ${input.name} is ${given.type} [${given.dims}], expected ${input.type} [${input.dims.map((size) => size ?? "?")}]`,
    );
  }
}
