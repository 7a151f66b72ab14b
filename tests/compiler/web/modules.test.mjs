// node --test: what the page's modules read, and what they refuse.

import assert from "node:assert/strict";
import test from "node:test";
import { difference, fromLists, random, readNpy } from "../../../compiler/web/arrays.mjs";
import { readGraph } from "../../../compiler/web/graph.mjs";
import { checkInput, open } from "../../../compiler/web/session.mjs";

const npy = (header, elements, version = 1) => {
  const length = version === 1 ? [header.length, 0] : [header.length, 0, 0, 0];
  return Uint8Array.from([0x93, ...Buffer.from("NUMPY"), version, 0, ...length, ...Buffer.from(header), ...elements]).buffer;
};
const header = (descr, shape, fortran = "False") => `{'descr': '${descr}', 'fortran_order': ${fortran}, 'shape': (${shape}), }\n`;

// one field of a protobuf message: a number below 128, or up to 16,383 bytes
const size = (length) => (length < 128 ? [length] : [(length & 127) | 128, length >> 7]);
const field = (number, value) =>
  typeof value === "number" ? [number << 3, value] : [(number << 3) | 2, ...size(value.length), ...value];
const words = (text) => [...Buffer.from(text)];
const pair = (key, value) => field(13, [...field(1, words(key)), ...field(2, words(value))]);
const weight = (name, location, offset, length) =>
  field(5, [...field(8, words(name)), ...pair("location", location), ...pair("offset", offset), ...pair("length", length), ...field(14, 1)]);
const dims = (...sizes) => sizes.flatMap((size) => field(1, typeof size === "number" ? field(1, size) : field(2, words(size))));
const value = (number, name, type, ...sizes) =>
  field(number, [...field(1, words(name)), ...field(2, field(1, [...field(1, type), ...field(2, dims(...sizes))]))]);
const model = (...parts) => Uint8Array.from([...field(1, 10), ...field(7, parts.flat())]);

test("arrays of every version of .npy are read", () => {
  for (const version of [1, 2]) {
    const read = readNpy(npy(header("<i2", "2, 1"), [1, 0, 255, 255], version));
    assert.deepEqual([read.type, read.dims, [...read.data]], ["int16", [2, 1], [1, -1]]);
  }
  assert.deepEqual(readNpy(npy(header("|b1", ""), [1])).dims, []);
});

test("a file that is no row-major array of its size is refused", () => {
  assert.throws(() => readNpy(npy(header("<f4", "2,"), [0, 0, 0, 0])), /holds 4 bytes of elements, expected 8/);
  assert.throws(() => readNpy(npy(header("<f4", "1,", "True"), [0, 0, 0, 0])), /column-major/);
  assert.throws(() => readNpy(npy(header(">f4", "1,"), [0, 0, 0, 0])), /its elements are >f4/);
  assert.throws(() => readNpy(Uint8Array.from(Buffer.from("{\"a\": [1, 2, 3]}")).buffer), /no .npy file/);
});

test("lists become arrays, and ragged ones are refused", () => {
  assert.deepEqual(fromLists([[1, 2], [3, 4]], "int64"), { type: "int64", dims: [2, 2], data: BigInt64Array.of(1n, 2n, 3n, 4n) });
  assert.throws(() => fromLists([[1, 2], [3]], "float32"), /differ in length or depth: expected 2 elements at depth 2/);
  assert.throws(() => fromLists([[1], ["a"]], "float32"), /a is no number/);
  assert.throws(() => fromLists([1], "complex64"), /complex64 are not known/);
});

test("a seed gives the same values again, and another seed others", () => {
  assert.deepEqual(random("float32", [3, 4], 1), random("float32", [3, 4], 1));
  assert.notDeepEqual(random("float32", [3, 4], 1), random("float32", [3, 4], 2));
  assert.ok(random("int64", [100], 1).data.every((one) => one >= 1n && one <= 9n));
});

test("a difference counts what is no number, and no difference of shapes", () => {
  const of = (...data) => ({ dims: [data.length], data });
  assert.equal(difference(of(1, 2, NaN, Infinity), of(1, 2.5, NaN, Infinity)), 0.5);
  assert.equal(difference(of(NaN), of(1)), Infinity);
  assert.throws(() => difference(of(1, 2), of(1)), /its shape is \[1\], but the output's is \[2\]/);
});

test("a graph says its inputs, its outputs and what weights it reads", () => {
  const weights = [weight("c0", "constants.bin", "0", "40"), weight("c1", "constants.bin", "64", "8")];
  const read = readGraph(model(...weights, value(11, "x", 1, "batch", 3), value(11, "c0", 1, 10), value(12, "y", 7, 2)));
  assert.deepEqual(read, {
    inputs: [{ name: "x", type: "float32", dims: ["batch", 3] }],
    outputs: [{ name: "y", type: "int64", dims: [2] }],
    data: { file: "constants.bin", bytes: 72 },
  });
});

test("what is no graph, or a part of one, is refused, and weights in two files too", async () => {
  const whole = model(weight("c0", "a.bin", "0", "4"), value(12, "y", 1, 2));
  assert.throws(() => readGraph(whole.subarray(0, whole.length - 1)), /cut off/);
  assert.throws(() => readGraph(Uint8Array.from(Buffer.from("PK\u0003\u0004 a zip"))), /no ONNX model|cut off/);
  assert.throws(() => readGraph(new Uint8Array()), /no ONNX model/);
  assert.throws(() => readGraph(model(weight("c0", "a.bin", "0", "4"), weight("c1", "b.bin", "0", "4"))), /a.bin and b.bin/);
  await assert.rejects(open(null, whole, null), /weights lie in a.bin: choose that file too/);
  await assert.rejects(open(null, whole, new Uint8Array(3)), /has 3 bytes, but the graph reads 4/);
});

test("an input of another type or shape is refused, and an open axis takes any size", () => {
  const input = { name: "x", type: "float32", dims: ["batch", 3] };
  checkInput(input, { type: "float32", dims: [7, 3] });
  assert.throws(() => checkInput(input, { type: "int64", dims: [7, 3] }), /x is int64 \[7,3\], expected float32 \[batch,3\]/);
  assert.throws(() => checkInput(input, { type: "float32", dims: [7, 4] }), /expected float32/);
  assert.throws(() => checkInput(input, { type: "float32", dims: [3] }), /expected float32/);
});
