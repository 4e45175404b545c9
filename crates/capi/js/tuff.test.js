// Tests of the package. TUFF_IMAGE is an image of the tree that .ci/bindings creates.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";
import { Image, TuffError } from "./tuff.js";

const bytes = await readFile(process.env.TUFF_IMAGE);
const requests = [];
const sources = {
  memory: () => Image.fromBytes(bytes),
  ranges: () =>
    Image.fromRanges(bytes.length, async (offset, length) => {
      requests.push([offset, length]);
      await new Promise((done) => setTimeout(done, 1));
      return bytes.subarray(offset, offset + length);
    }),
};

for (const [name, open] of Object.entries(sources)) {
  test(`an image in ${name} is walked and read`, async () => {
    const image = await open();
    const paths = [];
    for await (const entry of image.walk()) paths.push(entry.path);
    assert.deepEqual(paths, ["", "dir", "dir/file", "dir/numbers", "link"]);
    assert.deepEqual(await image.readdir("dir"), ["file", "numbers"]);
    assert.equal(new TextDecoder().decode(await image.read("dir/file")), "text\n");
    assert.equal(await image.readlink("link"), "dir/file");
    assert.equal((await image.stat("link")).size, 5);
    assert.equal((await image.lstat("link")).isSymlink, true);
    assert.equal((await image.stat("dir/file")).mode, 0o100640);
    const numbers = new TextDecoder().decode(await image.read("dir/numbers"));
    assert.equal(numbers, Array.from({ length: 300000 }, (_, n) => `${n + 1}\n`).join(""));
    assert.equal(new TextDecoder().decode(await image.read("dir/numbers", 2, 6)), "2\n3\n4\n");
    await assert.rejects(image.stat("none"), (e) => e instanceof TuffError && e.code === "TUFF_NOT_FOUND");
    await assert.rejects(image.readdir("link"), { code: "TUFF_USAGE" });
    image.close();
  });
}

test("operations may overlap", async () => {
  const image = await sources.ranges();
  const read = await Promise.all(["dir/file", "dir/numbers", "dir/file"].map((path) => image.read(path)));
  assert.deepEqual(read.map((bytes) => bytes.length), [5, 1988895, 5]);
  image.close();
});

test("ranges are requested once", () => {
  const seen = new Set(requests.map(String));
  assert.ok(requests.length > 2 && requests.length <= 2 * seen.size);
});

test("damage is reported", async () => {
  const damaged = Uint8Array.from(bytes);
  damaged.fill(0, 1024, 1028);
  await assert.rejects(Image.fromBytes(damaged), { code: "TUFF_CORRUPT" });
});

test("a closed image says so, also to an operation that waits", async () => {
  for (const make of Object.values(sources)) {
    const image = await make();
    const waiting = image.read("dir/numbers").catch((e) => e);
    image.close();
    image.close();
    const late = await waiting;
    assert.ok(late.code === "TUFF_USAGE" || late.length === 1988895);
    await assert.rejects(image.stat("dir"), { code: "TUFF_USAGE", message: "the image is closed" });
  }
});
