// What a page has to know of an ONNX file before anything runs: inputs, outputs, and the file of weights beside it.
//
// An ONNX model is one protobuf message. This reads the few fields that say so and steps over all others, nodes
// included; every length is checked against the file. Field numbers: onnx/onnx.proto (ONNX, IR version 3 and later).

const TYPES = {
  1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64",
};
const EXTERNAL = 1;

export class GraphError extends Error {}

// bytes: Uint8Array → {inputs, outputs: [{name, type, dims: [number | string | null]}], data: {file, bytes} | null}.
// A dimension with a name is a string, one without is null; `bytes` is the least that the file of weights must have.
export function readGraph(bytes) {
  let graph = null;
  let version = 0;
  for (const [field, value] of fields(bytes)) {
    if (field === 1) version = Number(value);
    if (field === 7) graph = asBytes(value);
  }
  if (graph === null || version < 3) {
    throw new GraphError("it is no ONNX model: expected a graph of IR version 3 or later; choose model.onnx");
  }
  const found = { inputs: [], outputs: [], data: null };
  const inside = new Set();
  for (const [field, value] of fields(graph)) {
    if (field === 5) noteWeight(readWeight(asBytes(value)), found, inside);
    if (field === 11) found.inputs.push(readValue(asBytes(value)));
    if (field === 12) found.outputs.push(readValue(asBytes(value)));
  }
  found.inputs = found.inputs.filter((input) => !inside.has(input.name));
  return found;
}

function noteWeight(weight, found, inside) {
  inside.add(weight.name);
  if (weight.location !== EXTERNAL) return;
  const file = weight.place.location;
  if (found.data !== null && found.data.file !== file) {
    throw new GraphError(`its weights lie in ${found.data.file} and ${file}; this page takes one file of weights`);
  }
  const end = Number(weight.place.offset ?? 0) + Number(weight.place.length ?? 0);
  found.data = { file, bytes: Math.max(end, found.data?.bytes ?? 0) };
}

function readWeight(bytes) {
  const weight = { name: "", location: 0, place: {} };
  for (const [field, value] of fields(bytes)) {
    if (field === 8) weight.name = text(value);
    if (field === 13) {
      const pair = {};
      for (const [part, word] of fields(asBytes(value))) pair[part] = text(word);
      weight.place[pair[1]] = pair[2];
    }
    if (field === 14) weight.location = Number(value);
  }
  return weight;
}

function readValue(bytes) {
  const value = { name: "", type: "unknown", dims: [] };
  for (const [field, part] of fields(bytes)) {
    if (field === 1) value.name = text(part);
    if (field === 2) Object.assign(value, readType(asBytes(part), value));
  }
  return value;
}

function readType(bytes, value) {
  const read = { type: value.type, dims: value.dims };
  for (const [field, tensor] of fields(bytes)) {
    if (field !== 1) continue;
    for (const [part, content] of fields(asBytes(tensor))) {
      if (part === 1) read.type = TYPES[Number(content)] ?? `element type ${content}`;
      if (part === 2) read.dims = [...fields(asBytes(content))].map(([, dim]) => readDim(asBytes(dim)));
    }
  }
  return read;
}

function readDim(bytes) {
  let size = null;
  for (const [field, value] of fields(bytes)) size = field === 1 ? Number(value) : text(value) || null;
  return size;
}

// Each field of a message: its number, and a BigInt (varint) or the bytes of what it holds.
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (at >= bytes.length) throw new GraphError("it ends in the middle of a number: the file is cut off");
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw new GraphError("it is no ONNX model: a number is longer than 64 bits; choose model.onnx");
  };
  const take = (size) => {
    if (size > bytes.length - at) throw new GraphError("it ends in the middle of a field: cut off, or no ONNX model");
    at += size;
    return bytes.subarray(at - size, at);
  };
  while (at < bytes.length) {
    const tag = varint();
    const kind = Number(tag & 7n);
    if (kind === 0) yield [Number(tag >> 3n), varint()];
    else if (kind === 1) yield [Number(tag >> 3n), take(8)];
    else if (kind === 2) yield [Number(tag >> 3n), take(Number(varint()))];
    else if (kind === 5) yield [Number(tag >> 3n), take(4)];
    else throw new GraphError(`it is no ONNX model: a field of wire type ${kind}; choose model.onnx`);
  }
}

function asBytes(value) {
  if (!(value instanceof Uint8Array)) throw new GraphError("it is no ONNX model: a number where a message should be");
  return value;
}

const text = (value) => new TextDecoder().decode(asBytes(value));
