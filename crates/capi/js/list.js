// Lists an image: mode, size, hash of the content (FNV-1a) and path of every entry.
import { open } from "node:fs/promises";
import { Image } from "./tuff.js";

const file = await open(process.argv[2]);
const image = await Image.fromRanges((await file.stat()).size, async (offset, length) => {
  const { buffer, bytesRead } = await file.read(new Uint8Array(length), 0, length, offset);
  return buffer.subarray(0, bytesRead);
});
for await (const { path, stat } of image.walk()) {
  let [size, hash] = [0, 0n];
  if (stat.isFile) {
    [size, hash] = [stat.size, 0xcbf29ce484222325n];
    for (const byte of await image.read(path)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  }
  const mode = stat.mode.toString(8).padStart(6, "0");
  console.log(`${mode} ${size} ${hash.toString(16).padStart(16, "0")} ${path}`);
}
image.close();
await file.close();
