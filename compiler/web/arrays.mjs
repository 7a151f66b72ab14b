// Arrays for a page: {type, dims, data}, where data is a typed array in row-major order. Read from .npy files and from
// JSON, made up from a seed, compared with each other.

export const KINDS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, int16: Int16Array,
  int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
  ...(typeof Float16Array === "undefined" ? {} : { float16: Float16Array }),
};
const NPY = {
  "<f2": "float16", "<f4": "float32", "<f8": "float64", "<i8": "int64", "<i4": "int32", "<i2": "int16", "|i1": "int8",
  "|u1": "uint8", "|b1": "bool",
};

export class ArrayError extends Error {}

// A file as NumPy's save() writes it (format versions 1 to 3, little-endian, row-major). buffer: ArrayBuffer.
export function readNpy(buffer) {
  const bytes = new Uint8Array(buffer);
  if (bytes.length < 12 || String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") {
    throw new ArrayError("it is no .npy file: expected what numpy.save writes");
  }
  const view = new DataView(buffer);
  const [start, size] = bytes[6] === 1 ? [10, view.getUint16(8, true)] : [12, view.getUint32(8, true)];
  const header = new TextDecoder().decode(bytes.subarray(start, start + size));
  const code = /'descr':\s*'([^']*)'/.exec(header)?.[1];
  const shape = /'shape':\s*\(([^)]*)\)/.exec(header)?.[1];
  const type = NPY[code];
  if (type === undefined || shape === undefined || !(type in KINDS)) {
    throw new ArrayError(`its elements are ${code ?? "not stated"}: expected one of ${Object.keys(NPY).join(" ")}`);
  }
  if (/'fortran_order':\s*True/.test(header)) {
    throw new ArrayError("it is column-major: expected row-major; save numpy.ascontiguousarray(it)");
  }
  const dims = shape.split(",").filter((word) => word.trim()).map(Number);
  const Kind = KINDS[type];
  const expected = count(dims) * Kind.BYTES_PER_ELEMENT;
  if (bytes.length - start - size !== expected) {
    throw new ArrayError(`it holds ${bytes.length - start - size} bytes of elements, expected ${expected}`);
  }
  return { type, dims, data: new Kind(buffer.slice(start + size)) };
}

// Nested lists of numbers (true and false count as 1 and 0), all lists of one depth equally long.
export function fromLists(lists, type) {
  const dims = [];
  for (let level = lists; Array.isArray(level); level = level[0]) dims.push(level.length);
  const flat = [];
  const walk = (level, depth) => {
    if (depth === dims.length) {
      if (typeof level !== "number" && typeof level !== "boolean") throw new ArrayError(`${level} is no number`);
      flat.push(type === "int64" ? BigInt(level) : Number(level));
    } else {
      if (!Array.isArray(level) || level.length !== dims[depth]) {
        throw new ArrayError(`its lists differ in length or depth: expected ${dims[depth]} elements at depth ${depth + 1}`);
      }
      for (const part of level) walk(part, depth + 1);
    }
  };
  walk(lists, 0);
  return { type, dims, data: kindOf(type).from(flat) };
}

// The same numbers from the same seed everywhere (mulberry32): floats in [−1, 1), integers in 1…9, bools either.
export function random(type, dims, seed) {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const draw = {
    int64: () => BigInt(1 + Math.floor(next() * 9)),
    bool: () => Math.floor(next() * 2),
  };
  const integer = () => 1 + Math.floor(next() * 9);
  const one = draw[type] ?? (/int/.test(type) ? integer : () => 2 * next() - 1);
  return { type, dims, data: kindOf(type).from({ length: count(dims) }, one) };
}

// The largest |found − expected|; NaN beside NaN counts as equal, NaN beside a number as infinite.
export function difference(found, expected) {
  if (String(found.dims) !== String(expected.dims)) {
    throw new ArrayError(`its shape is [${expected.dims}], but the output's is [${found.dims}]`);
  }
  let worst = 0;
  for (let index = 0; index < found.data.length; index++) {
    const [a, b] = [Number(found.data[index]), Number(expected.data[index])];
    if (Object.is(a, b) || a === b) continue;
    worst = Math.max(worst, Number.isNaN(a - b) ? Infinity : Math.abs(a - b));
  }
  return worst;
}

export const count = (dims) => dims.reduce((product, size) => product * size, 1);

function kindOf(type) {
  if (!(type in KINDS)) throw new ArrayError(`elements of ${type} are not known here`);
  return KINDS[type];
}
