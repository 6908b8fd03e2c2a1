// SPDX-License-Identifier: Apache-2.0
// Program '@NAME@' as WebAssembly, compiled by graphopt @VERSION@. In a page and in node:
//
//     import { Program } from "./@NAME@.mjs";
//     const program = await Program.load();
//     const { data, dims } = program.run({ @EXAMPLE@ })[@OUTPUT@];
//
// A page has to be served: browsers read no other files from a file.

export const description = @DESCRIPTION@;

const ARRAYS = {
  f64: Float64Array, f32: Float32Array, i64: BigInt64Array, u64: BigUint64Array, i32: Int32Array, u32: Uint32Array,
  i16: Int16Array, u16: Uint16Array, f16: Uint16Array, bf16: Uint16Array, i8: Int8Array,
};

/** The typed array that has a tensor's elements; those that JavaScript lacks are their bits. */
export function arrayOf(tensor) {
  return ARRAYS[tensor.dtype] ?? Uint8Array;
}

function count(dims) {
  return dims.reduce((product, dim) => product * dim, 1);
}

async function bytesOf(url) {
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return new Uint8Array(await readFile(url));
  }
  const answer = await fetch(url);
  if (!answer.ok) throw new Error(`'${url}' cannot be read: ${answer.status} ${answer.statusText}.`);
  return new Uint8Array(await answer.arrayBuffer());
}

/** The functions of the C library that a module asks for. */
function mathematics(module) {
  const given = {};
  for (const { name } of WebAssembly.Module.imports(module)) {
    given[name] = name === "fmod" ? (a, b) => a % b : Math[name];
  }
  return { env: given };
}

/** A program with its memory: one call after the other. */
export class Program {
  /** `code` and `weights` are the content of the files @NAME@.wasm and @NAME@.weights. */
  static async from(code, weights) {
    if (weights.length !== description.weights_bytes) {
      throw new Error(`${weights.length} bytes of weights are given instead of ${description.weights_bytes}.`);
    }
    const module = await WebAssembly.compile(code);
    return new Program(await WebAssembly.instantiate(module, mathematics(module)), weights);
  }

  /** The program whose files lie in a folder; by default beside this one. */
  static async load(folder = new URL("./", import.meta.url)) {
    const [code, weights] = await Promise.all(
      ["@NAME@.wasm", "@NAME@.weights"].map((name) => bytesOf(new URL(name, folder))),
    );
    return Program.from(code, weights);
  }

  constructor(instance, weights) {
    this.exports = instance.exports;
    this.start = instance.exports.place() >>> 0;
    this.bytes(0, weights.length).set(weights);
  }

  bytes(offset, length) {
    return new Uint8Array(this.exports.memory.buffer, this.start + offset, length);
  }

  /** The outputs by name, each { data, dims }, for typed arrays by the names of inputs: dense, row-major. */
  run(feeds) {
    for (const name of Object.keys(feeds)) {
      if (!description.inputs.some((one) => one.name === name)) throw new Error(`there is no input '${name}'.`);
    }
    description.inputs.forEach((one, number) => this.give(one, feeds[one.name], description.places.inputs[number]));
    this.exports.run();
    let counted = description.outputs.length;
    const found = {};
    description.outputs.forEach((one, number) => {
      let dims = one.shape;
      if (one.counted?.length) {
        const held = this.bytes(description.places.outputs[counted++], 8 * dims.length).slice();
        dims = Array.from(new BigInt64Array(held.buffer), Number);
      }
      const kind = arrayOf(one);
      const place = description.places.outputs[number];
      found[one.name] = { data: new kind(this.bytes(place, count(dims) * kind.BYTES_PER_ELEMENT).slice().buffer), dims };
    });
    return found;
  }

  give(tensor, array, place) {
    const kind = arrayOf(tensor);
    if (!(array instanceof kind)) throw new Error(`input '${tensor.name}' is to be a ${kind.name}.`);
    const size = count(tensor.shape);
    if (array.length !== size) {
      throw new Error(`input '${tensor.name}' has ${array.length} elements; expected are ${size}: [${tensor.shape}].`);
    }
    for (const [position, number] of tensor.held ?? []) {
      if (Number(array[position]) !== number) {
        const why = `holds ${array[position]} at place ${position}; the program is compiled for ${number} there`;
        throw new Error(`input '${tensor.name}' ${why}.`);
      }
    }
    this.bytes(place, array.byteLength).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
  }
}
