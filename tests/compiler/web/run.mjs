// node run.mjs FOLDER TIMES: run model.onnx with constants.bin over x.npy, in WebAssembly; print what it answers as JSON.

import { readFile } from "node:fs/promises";
import * as ort from "../../../compiler/web/runtime/ort.wasm.min.mjs";
import { readNpy } from "../../../compiler/web/arrays.mjs";
import { open } from "../../../compiler/web/session.mjs";

const [folder, times] = process.argv.slice(2);
const bytes = async (name) => new Uint8Array(await readFile(`${folder}/${name}`));
ort.env.wasm.numThreads = 1;

const before = performance.now();
const session = await open(ort, await bytes("model.onnx"), await bytes("constants.bin"));
const opened = performance.now() - before;
const x = readNpy((await bytes("x.npy")).buffer);
const inputs = { [session.about.inputs[0].name]: x };
const milliseconds = [];
let outputs;
for (let number = 0; number < Number(times); number++) {
  const done = await session.run(inputs);
  milliseconds.push(done.milliseconds);
  outputs = done.outputs;
}
const plain = ([name, { type, dims, data }]) => [name, { type, dims, data: Array.from(data, Number) }];
console.log(JSON.stringify({ opened, milliseconds, outputs: Object.fromEntries(Object.entries(outputs).map(plain)) }));
