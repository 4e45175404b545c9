/** Path in an image, from the root, with or without a leading slash. */
export type Path = string;

/** Attributes of an inode. */
export interface Stat {
  nid: bigint;
  /** Type and permissions, as `st_mode`. */
  mode: number;
  /** Size of the data in bytes. */
  size: number;
  uid: number;
  gid: number;
  nlink: number;
  /** Modification time in seconds since 1970, and its nanoseconds. */
  mtime: bigint;
  mtimeNsec: number;
  /** Major and minor number of a device. */
  device: [number, number];
  isDirectory: boolean;
  isFile: boolean;
  isSymlink: boolean;
}

/** Name in an image. */
export interface Entry {
  /** Path from the root, without a leading slash. */
  path: string;
  stat: Stat;
}

/** Failure of an operation. */
export class TuffError extends Error {
  /** `TUFF_NOT_FOUND`, `TUFF_USAGE`, `TUFF_CORRUPT`, `TUFF_UNSUPPORTED`, `TUFF_LIMIT`, `TUFF_IO` or `TUFF_PANIC`. */
  code: string;
}

/** Open image. */
export class Image {
  /** Opens an image in memory. */
  static fromBytes(bytes: Uint8Array): Promise<Image>;
  /** Opens an image of `size` bytes. `read` returns a range of it. */
  static fromRanges(
    size: number,
    read: (offset: number, length: number) => Promise<Uint8Array> | Uint8Array,
  ): Promise<Image>;
  /** Opens an image behind a URL, whose server must support range requests. */
  static fromUrl(url: string | URL, init?: RequestInit): Promise<Image>;

  /** Returns the attributes of a path. Symbolic links are followed. */
  stat(path?: Path): Promise<Stat>;
  /** Returns the attributes of a path. Symbolic links are not followed. */
  lstat(path?: Path): Promise<Stat>;
  /** Returns the names in a directory. */
  readdir(path?: Path): Promise<string[]>;
  /** Iterates over a path and everything below it. Directories come before their entries. */
  walk(path?: Path): AsyncGenerator<Entry, void, void>;
  /** Returns bytes of a file: all of them, or `length` from `offset` on. */
  read(path: Path, offset?: number, length?: number): Promise<Uint8Array>;
  /** Returns the target of a symbolic link. */
  readlink(path: Path): Promise<string>;
  /** Releases the memory of the image. */
  close(): void;
}

/** Sets where `tuff.wasm` comes from, before the first image is opened: its URL, bytes or module. */
export function setWasm(source: string | URL | BufferSource | WebAssembly.Module): void;
