// Reader of EROFS images: a thin layer over the C interface in tuff.wasm.

const STATUS = [
  "TUFF_OK", "TUFF_END", "TUFF_NOT_FOUND", "TUFF_AGAIN", "TUFF_USAGE", "TUFF_CORRUPT", "TUFF_UNSUPPORTED", "TUFF_LIMIT",
  "TUFF_IO", "TUFF_SOURCE", "TUFF_PANIC",
];
const [OK, END, , AGAIN] = STATUS.keys();

// Layout of the structures of tuff.h on wasm32. Unit: bytes.
const ERROR = { message: 8, messageLength: 1024, size: 1032 };
const STAT_SIZE = 56;
const ENTRY_SIZE = 24;

/** Bytes of a file per call: all ranges that a call needs must be in memory at once. */
const PART = 1 << 20;
/** Bytes of an image that are kept. */
const CAPACITY = 64 << 20;

export class TuffError extends Error {
  constructor(code, message) {
    super(message);
    this.name = "TuffError";
    this.code = code;
  }
}

let wasm = new URL("tuff.wasm", import.meta.url);
let library;

export function setWasm(source) {
  wasm = source;
  library = undefined;
}

async function load(source) {
  if (typeof source === "string") source = new URL(source, import.meta.url);
  if (source instanceof URL) {
    if (source.protocol === "file:") {
      const { readFile } = await import("node:fs/promises");
      source = await readFile(source);
    } else {
      source = await (await fetch(source)).arrayBuffer();
    }
  }
  const module = source instanceof WebAssembly.Module ? source : await WebAssembly.compile(source);
  return (await WebAssembly.instantiate(module, {})).exports;
}

/** Memory of the library that is released when the function ends. */
class Arena {
  #library;
  #parts = [];

  constructor(library) {
    this.#library = library;
  }

  alloc(size) {
    const at = this.#library.tuff_alloc(size);
    if (at === 0) throw new TuffError("TUFF_LIMIT", `no memory for ${size} bytes`);
    this.#parts.push([at, size]);
    return at;
  }

  bytes(bytes) {
    const at = this.alloc(bytes.length);
    new Uint8Array(this.#library.memory.buffer).set(bytes, at);
    return at;
  }

  text(text) {
    return this.bytes(new TextEncoder().encode(`${text}\0`));
  }

  free() {
    for (const [at, size] of this.#parts) this.#library.tuff_free(at, size);
  }
}

export class Image {
  #library;
  #handle = 0;
  #ranges = 0;
  #isClosed = false;
  #read;

  static async fromBytes(bytes) {
    const image = new Image();
    image.#library = await (library ??= load(wasm));
    await image.#run((x, arena, error) => {
      const out = arena.alloc(4);
      const status = x.tuff_image_open_memory(arena.bytes(bytes), bytes.length, out, error);
      return [status, () => (image.#handle = image.#view().getUint32(out, true))];
    });
    return image;
  }

  static async fromRanges(size, read) {
    const image = new Image();
    image.#library = await (library ??= load(wasm));
    image.#read = read;
    await image.#run((x, arena, error) => {
      const out = arena.alloc(4);
      const status = x.tuff_ranges_new(BigInt(size), CAPACITY, out, error);
      return [status, () => (image.#ranges = image.#view().getUint32(out, true))];
    });
    try {
      await image.#run((x, arena, error) => {
        const out = arena.alloc(4);
        const status = x.tuff_image_open_ranges(image.#ranges, out, error);
        return [status, () => (image.#handle = image.#view().getUint32(out, true))];
      });
    } catch (error) {
      image.close();
      throw error;
    }
    return image;
  }

  static async fromUrl(url, init = {}) {
    const head = await fetch(url, { ...init, method: "HEAD" });
    const size = Number(head.headers.get("content-length"));
    if (!head.ok || !size) throw new TuffError("TUFF_IO", `${url}: status ${head.status}, no length`);
    return Image.fromRanges(size, async (offset, length) => {
      const headers = new Headers(init.headers);
      headers.set("range", `bytes=${offset}-${offset + length - 1}`);
      const answer = await fetch(url, { ...init, headers });
      if (answer.status !== 206) {
        throw new TuffError("TUFF_IO", `${url}: status ${answer.status}, expected 206 for a range`);
      }
      return new Uint8Array(await answer.arrayBuffer());
    });
  }

  async stat(path = "") {
    return this.#stat(await this.#find(path, true));
  }

  async lstat(path = "") {
    return this.#stat(await this.#find(path, false));
  }

  async readdir(path = "") {
    const entries = await this.#list(await this.#find(path, true));
    return entries.map(([name]) => name);
  }

  async *walk(path = "") {
    const start = path.replace(/^\/+|\/+$/g, "");
    const nid = await this.#find(path, false);
    yield* this.#below({ path: start, stat: await this.#stat(nid) });
  }

  async *#below(entry) {
    yield entry;
    if (!entry.stat.isDirectory) return;
    for (const [name, nid] of await this.#list(entry.stat.nid)) {
      const path = entry.path ? `${entry.path}/${name}` : name;
      yield* this.#below({ path, stat: await this.#stat(nid) });
    }
  }

  async read(path, offset = 0, length = Infinity) {
    const stat = await this.stat(path);
    if (stat.isDirectory) throw new TuffError("TUFF_USAGE", `${path}: is a directory`);
    const end = Math.min(stat.size, offset + length);
    const parts = [];
    for (let at = offset; at < end; at += PART) {
      parts.push(await this.#part(stat.nid, at, Math.min(PART, end - at)));
    }
    const bytes = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      bytes.set(part, at);
      at += part.length;
    }
    return bytes;
  }

  async readlink(path) {
    const nid = await this.#find(path, false);
    return this.#run((x, arena, error) => {
      const [size, len] = [65536, arena.alloc(4)];
      const buf = arena.alloc(size);
      const status = x.tuff_image_readlink(this.#handle, nid, buf, size, len, error);
      return [status, () => this.#text(buf, this.#view().getUint32(len, true))];
    });
  }

  close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#library.tuff_image_close(this.#handle);
    this.#library.tuff_ranges_free(this.#ranges);
    this.#handle = this.#ranges = 0;
  }

  #find(path, follow) {
    return this.#run((x, arena, error) => {
      const out = arena.alloc(8);
      const status = x.tuff_image_find(this.#handle, arena.text(path), Number(follow), out, error);
      return [status, () => this.#view().getBigUint64(out, true)];
    });
  }

  #stat(nid) {
    return this.#run((x, arena, error) => {
      const at = arena.alloc(STAT_SIZE);
      const status = x.tuff_image_stat(this.#handle, nid, at, error);
      return [status, () => statOf(new DataView(x.memory.buffer, at, STAT_SIZE))];
    });
  }

  #list(nid) {
    return this.#run((x, arena, error) => {
      const [out, at, found] = [arena.alloc(4), arena.alloc(ENTRY_SIZE), []];
      let status = x.tuff_dir_open(this.#handle, nid, out, error);
      if (status !== OK) return [status];
      const dir = this.#view().getUint32(out, true);
      while ((status = x.tuff_dir_next(dir, at, error)) === OK) {
        const view = this.#view();
        const name = this.#text(view.getUint32(at, true), view.getUint32(at + 4, true));
        found.push([name, view.getBigUint64(at + 8, true)]);
      }
      x.tuff_dir_close(dir);
      return [status === END ? OK : status, () => found];
    });
  }

  #part(nid, offset, length) {
    return this.#run((x, arena, error) => {
      const [buf, out] = [arena.alloc(length), arena.alloc(4)];
      const status = x.tuff_image_read(this.#handle, nid, BigInt(offset), buf, length, out, error);
      return [status, () => new Uint8Array(x.memory.buffer).slice(buf, buf + this.#view().getUint32(out, true))];
    });
  }

  /** Calls the library until no range is missing. Results are taken before anything else can run. */
  async #run(call) {
    for (;;) {
      // Also after a wait for ranges.
      if (this.#isClosed) throw new TuffError("TUFF_USAGE", "the image is closed");
      const arena = new Arena(this.#library);
      let missing;
      try {
        const error = arena.alloc(ERROR.size);
        const [status, result] = call(this.#library, arena, error);
        if (status === OK) return result();
        if (status !== AGAIN || !this.#ranges) {
          const bytes = new Uint8Array(this.#library.memory.buffer, error + ERROR.message, ERROR.messageLength);
          const message = new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
          throw new TuffError(STATUS[status], message);
        }
        const at = arena.alloc(16);
        this.#library.tuff_ranges_missing(this.#ranges, at, at + 8, error);
        missing = [this.#view().getBigUint64(at, true), this.#view().getBigUint64(at + 8, true)];
      } finally {
        arena.free();
      }
      await this.#supply(...missing.map(Number));
    }
  }

  async #supply(offset, length) {
    const bytes = await this.#read(offset, length);
    if (this.#isClosed) return;
    if (bytes.length < length) {
      throw new TuffError("TUFF_IO", `expected ${length} bytes at ${offset}, found ${bytes.length}`);
    }
    const arena = new Arena(this.#library);
    try {
      this.#library.tuff_ranges_put(this.#ranges, BigInt(offset), arena.bytes(bytes), bytes.length, 0);
    } finally {
      arena.free();
    }
  }

  #view() {
    return new DataView(this.#library.memory.buffer);
  }

  #text(at, length) {
    return new TextDecoder().decode(new Uint8Array(this.#library.memory.buffer, at, length));
  }
}

function statOf(view) {
  const mode = view.getUint32(28, true);
  return {
    nid: view.getBigUint64(0, true),
    mode,
    size: Number(view.getBigUint64(8, true)),
    uid: view.getUint32(32, true),
    gid: view.getUint32(36, true),
    nlink: view.getUint32(40, true),
    mtime: view.getBigInt64(16, true),
    mtimeNsec: view.getUint32(24, true),
    device: [view.getUint32(44, true), view.getUint32(48, true)],
    isDirectory: (mode & 0o170000) === 0o040000,
    isFile: (mode & 0o170000) === 0o100000,
    isSymlink: (mode & 0o170000) === 0o120000,
  };
}
